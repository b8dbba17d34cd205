/* SPDX-License-Identifier: Apache-2.0 */
#include "probes/mc_log.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "probes/op_block.h"

#define U64_DIGITS 20

/* What an op's summary line has. */
struct op_text {
	const char *name;
	bool num_keys, total_bytes;
};

static const struct op_text ops[KVP_OP_COUNT] = {
        [KVP_OP_PUT] = {"batch_put_from_multi_buffers", true, true},
        [KVP_OP_IS_EXIST] = {"batch_is_exist", true, false},
        [KVP_OP_GET] = {"batch_get_into_multi_buffers", true, false},
        [KVP_OP_REGISTER] = {"register_buffer", false, true},
        [KVP_OP_REPLICA_DESC] = {"batch_get_replica_desc", true, false},
};

static const char *const replica_names[] = {
        [KVP_REPLICA_MEMORY] = "memory",
        [KVP_REPLICA_LOCAL_DISK] = "local_disk",
        [KVP_REPLICA_DISK] = "disk",
};

const char *mc_log_op_name(uint16_t op)
{
	return op < KVP_OP_COUNT ? ops[op].name : NULL;
}

uint16_t mc_log_op_number(const char *name)
{
	for (uint16_t op = 1; op < KVP_OP_COUNT; op++)
		if (strcmp(ops[op].name, name) == 0)
			return op;
	return 0;
}

/* --- text ---------------------------------------------------------------------------------------- */

/* Where the next `more` bytes go, or NULL when memory ran out. */
static char *room_for(struct mc_text *out, size_t more)
{
	if (out->failed)
		return NULL;
	if (out->capacity - out->length < more) {
		size_t capacity = out->capacity ? out->capacity : 4096;
		while (capacity - out->length < more)
			capacity *= 2;
		char *grown = realloc(out->text, capacity);
		if (!grown) {
			out->failed = true;
			return NULL;
		}
		out->text = grown;
		out->capacity = capacity;
	}
	return out->text + out->length;
}

static void put_bytes(struct mc_text *out, const char *bytes, size_t size)
{
	char *at = room_for(out, size);
	if (!at)
		return;
	memcpy(at, bytes, size);
	out->length += size;
}

static void put_text(struct mc_text *out, const char *text)
{
	put_bytes(out, text, strlen(text));
}

static void put_number(struct mc_text *out, uint64_t value)
{
	char digits[U64_DIGITS];
	size_t at = sizeof(digits);
	do {
		digits[--at] = (char)('0' + value % 10);
		value /= 10;
	} while (value);
	put_bytes(out, digits + at, sizeof(digits) - at);
}

static void put_field(struct mc_text *out, const char *name, uint64_t value)
{
	put_text(out, name);
	put_number(out, value);
}

static void put_hex(struct mc_text *out, uint64_t value, int digits)
{
	char text[16];
	for (int i = digits - 1; i >= 0; i--, value >>= 4)
		text[i] = "0123456789abcdef"[value & 15];
	put_bytes(out, text, (size_t)digits);
}

/* Bytes that a person or a peer chose: printable ASCII as it is, everything else escaped, so that it can
 * neither break a line nor forge a field. */
static void put_escaped(struct mc_text *out, const char *bytes, size_t size)
{
	char *at = room_for(out, size * 4);
	if (!at)
		return;
	char *start = at;
	for (size_t i = 0; i < size; i++) {
		unsigned char c = (unsigned char)bytes[i];
		if (c >= 0x21 && c <= 0x7e && c != '\\') {
			*at++ = (char)c;
			continue;
		}
		*at++ = '\\';
		*at++ = 'x';
		*at++ = "0123456789abcdef"[c >> 4];
		*at++ = "0123456789abcdef"[c & 15];
	}
	out->length += (size_t)(at - start);
}

static void put_timestamp(struct mc_text *out, uint64_t time_ns)
{
	time_t seconds = (time_t)(time_ns / 1000000000u);
	struct tm utc;
	char text[40];

	if (!gmtime_r(&seconds, &utc))
		memset(&utc, 0, sizeof(utc));
	put_bytes(out, text, strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S.", &utc));
	uint64_t micros = time_ns / 1000 % 1000000;
	for (uint64_t unit = 100000; unit; unit /= 10)
		put_number(out, micros / unit % 10);
	put_text(out, "Z ");
}

/* --- lines ----------------------------------------------------------------------------------------- */

static void put_prefix(struct mc_text *out, const struct mc_log_style *style, uint64_t op_id)
{
	if (style->timestamp)
		put_timestamp(out, style->time_ns);
	if (style->show_pid) {
		put_field(out, "pid=", style->pid);
		put_text(out, " ");
	}
	if (style->trace_id) {
		put_text(out, "trace_id=");
		put_hex(out, op_id, 16);
		put_text(out, " ");
	}
}

static void put_summary(struct mc_text *out, const struct kvp_block *head)
{
	const struct op_text *op = &ops[head->op];

	put_text(out, "[");
	put_text(out, op->name);
	put_field(out, "] elapsed_us=", head->elapsed_ns / 1000);
	if (op->num_keys)
		put_field(out, " num_keys=", head->n_keys);
	if (op->total_bytes)
		put_field(out, " total_bytes=", head->total_bytes);
	put_text(out, "\n");
}

static void put_key_line(struct mc_text *out, const struct op_record *record, bool with_rc)
{
	put_text(out, record->success ? "success=1 key=" : "success=0 key=");
	put_escaped(out, record->key, record->key_len);
	if (record->has_size)
		put_field(out, " size=", record->size);
	if (record->replica != KVP_REPLICA_NONE && record->endpoint_len) {
		put_text(out, " replica=");
		put_text(out, replica_names[record->replica]);
		put_text(out, " endpoint=");
		put_escaped(out, record->endpoint, record->endpoint_len);
	}
	if (with_rc && record->rc < 0)
		put_field(out, " rc=-", (uint64_t) - (int64_t)record->rc);
	put_text(out, "\n");
}

static bool wanted(const struct op_record *record, const struct mc_log_style *style)
{
	return !style->key_prefix || (record->key_len >= style->key_prefix_len &&
	                              memcmp(record->key, style->key_prefix, style->key_prefix_len) == 0);
}

int64_t mc_log_format(struct mc_text *out, const void *block, size_t size, const struct mc_log_style *style)
{
	struct op_block_cursor cursor;
	struct op_record record;
	struct kvp_block head;
	size_t before = out->length;
	int64_t lines = 0;
	int more;

	if (!op_block_open(&cursor, block, size))
		return -1;
	memcpy(&head, block, sizeof(head));
	put_prefix(out, style, head.op_id);
	put_summary(out, &head);
	while ((more = op_block_next(&cursor, &record)) > 0) {
		if (!wanted(&record, style))
			continue;
		put_prefix(out, style, head.op_id);
		put_key_line(out, &record, style->rc);
		lines++;
	}
	if (more < 0) {
		out->length = before;
		return -1;
	}
	if (style->key_prefix && lines == 0)
		out->length = before;
	return lines;
}
