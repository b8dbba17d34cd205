/* SPDX-License-Identifier: Apache-2.0 */
#include "store/master/kvmaster_settings.h"

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "kvstore_status.h"
#include "store/base/log.h"
#include "store/base/parse.h"

#define MOST_MS (10ull * 365 * 24 * 3600 * 1000) /* longest time that may be set */

void settings_default(struct settings *settings)
{
	*settings = (struct settings){.rpc_address = "127.0.0.1", .rpc_port = 50051, .rpc_threads = 0};
	master_config_default(&settings->master);
}

/* One parser per kind of value: false if the text is not one. */

static bool take_text(void *out, const char *value)
{
	struct settings *settings = out;
	size_t len = strlen(value);
	if (len == 0 || len >= sizeof(settings->rpc_address))
		return false;
	memcpy(settings->rpc_address, value, len + 1);
	return true;
}

static bool take_port(void *out, const char *value)
{
	uint64_t number;
	if (kv_parse_u64(&number, value) || number > UINT16_MAX)
		return false;
	*(uint16_t *)out = (uint16_t)number;
	return true;
}

static bool take_threads(void *out, const char *value)
{
	uint64_t number;
	if (kv_parse_u64(&number, value) || number > 256)
		return false;
	*(int *)out = (int)number;
	return true;
}

static bool take_ms(void *out, const char *value)
{
	uint64_t ms;
	if (kv_parse_duration_ms(&ms, value) || ms > MOST_MS)
		return false;
	*(uint64_t *)out = ms;
	return true;
}

static bool take_seconds(void *out, const char *value)
{
	uint64_t seconds;
	if (kv_parse_u64(&seconds, value) || seconds == 0 || seconds > MOST_MS / 1000)
		return false;
	*(uint64_t *)out = seconds * 1000;
	return true;
}

static bool take_bool(void *out, const char *value)
{
	int on;
	if (kv_parse_bool(&on, value))
		return false;
	*(bool *)out = on;
	return true;
}

static bool take_ratio(void *out, const char *value)
{
	double ratio;
	if (kv_parse_double(&ratio, value) || ratio < 0 || ratio > 1)
		return false;
	*(double *)out = ratio;
	return true;
}

static bool take_strategy(void *out, const char *value)
{
	(void)out;
	return strcmp(value, "random") == 0;
}

#define SECONDS "seconds, at least 1"
#define TIME    "a time like 500ms, 10s, 30m or 24h"

static const struct setting {
	const char *name;
	size_t offset;
	bool (*take)(void *out, const char *value);
	const char *expected;
} known[] = {
        {"rpc_address", 0, take_text, "a host name or address"},
        {"rpc_port", offsetof(struct settings, rpc_port), take_port, "a port from 0 to 65535"},
        {"rpc_thread_num", offsetof(struct settings, rpc_threads), take_threads, "a number from 0 to 256"},
        {"default_kv_lease_ttl", offsetof(struct settings, master.kv_lease_ttl_ms), take_ms, TIME},
        {"default_kv_soft_pin_ttl", offsetof(struct settings, master.soft_pin_ttl_ms), take_ms, TIME},
        {"max_kv_soft_pin_ttl", offsetof(struct settings, master.max_soft_pin_ttl_ms), take_ms, TIME},
        {"allow_evict_soft_pinned_objects", offsetof(struct settings, master.allow_evict_soft_pinned), take_bool,
         "true or false"},
        {"eviction_ratio", offsetof(struct settings, master.eviction_ratio), take_ratio, "a number from 0 to 1"},
        {"eviction_high_watermark_ratio", offsetof(struct settings, master.eviction_high_watermark), take_ratio,
         "a number from 0 to 1"},
        {"put_start_discard_timeout_sec", offsetof(struct settings, master.put_start_discard_ms), take_seconds,
         SECONDS},
        {"put_start_release_timeout_sec", offsetof(struct settings, master.put_start_release_ms), take_seconds,
         SECONDS},
        {"client_ttl", offsetof(struct settings, master.client_ttl_ms), take_seconds, SECONDS},
        {"allocation_strategy", 0, take_strategy, "random, the only strategy this version supports"},
};

/* Names of other masters' settings. What nobody can miss is ignored with a warning; what somebody would miss (a
 * scrape, a standby, data on disk) is refused, unless the value says off, which is what it is. */
static const struct foreign {
	const char *name;
	const char *ignored_because; /* NULL: refused */
} foreign[] = {
        {"enable_http_metadata_server", "workers need no metadata server"},
        {"http_metadata_server_port", "workers need no metadata server"},
        {"http_metadata_server_host", "workers need no metadata server"},
        {"ha_backend_type", "enable_ha is not supported"},
        {"etcd_endpoints", "enable_ha is not supported"},
        {"cluster_id", "enable_ha is not supported"},
        {"snapshot_interval_seconds", "enable_snapshot is not supported"},
        {"snapshot_backup_dir", "enable_snapshot is not supported"},
        {"metrics_port", NULL},
        {"metrics_host", NULL},
        {"enable_metric_reporting", NULL},
        {"enable_offload", NULL},
        {"offload_on_evict", NULL},
        {"promotion_on_hit", NULL},
        {"root_fs_dir", NULL},
        {"enable_ha", NULL},
        {"enable_snapshot", NULL},
};

static bool is_off(const char *value)
{
	int on;
	return *value == '\0' || (kv_parse_bool(&on, value) == KV_OK && !on);
}

static int set_foreign(const struct foreign *setting, const char *value, char why[SETTINGS_WHY])
{
	if (is_off(value))
		return KV_OK;
	if (setting->ignored_because) {
		kv_warn("%s=%.100s is ignored: %s", setting->name, value, setting->ignored_because);
		return KV_OK;
	}
	snprintf(why, SETTINGS_WHY, "%s=%.100s: not supported by this version; leave it out", setting->name, value);
	return KV_NOT_SUPPORTED;
}

static int set_unknown(const char *name, const char *value, char why[SETTINGS_WHY])
{
	for (size_t i = 0; i < sizeof(foreign) / sizeof(foreign[0]); i++) {
		if (strcmp(name, foreign[i].name) == 0)
			return set_foreign(&foreign[i], value, why);
	}
	snprintf(why, SETTINGS_WHY, "%.100s: unknown name", name);
	return KV_INVALID_PARAMS;
}

int settings_set(struct settings *settings, const char *name, const char *value, char why[SETTINGS_WHY])
{
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		if (strcmp(name, known[i].name) != 0)
			continue;
		if (known[i].take((char *)settings + known[i].offset, value))
			return KV_OK;
		snprintf(why, SETTINGS_WHY, "%s=%.60s: expected %s", name, value, known[i].expected);
		return known[i].take == take_strategy ? KV_NOT_SUPPORTED : KV_INVALID_PARAMS;
	}
	return set_unknown(name, value, why);
}

/* A JSON value as the text that settings_set takes; false for lists, objects and null. */
static bool text_of(const json_t *value, char *out, size_t size)
{
	int len = -1;
	if (json_is_string(value))
		len = snprintf(out, size, "%s", json_string_value(value));
	else if (json_is_boolean(value))
		len = snprintf(out, size, "%s", json_is_true(value) ? "true" : "false");
	else if (json_is_integer(value))
		len = snprintf(out, size, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
	else if (json_is_real(value))
		len = snprintf(out, size, "%.17g", json_real_value(value));
	return len >= 0 && (size_t)len < size;
}

int settings_load(struct settings *settings, const char *path, char why[SETTINGS_WHY])
{
	json_error_t error;
	json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
	if (!root || !json_is_object(root)) {
		if (root)
			snprintf(why, SETTINGS_WHY, "not a JSON object");
		else
			snprintf(why, SETTINGS_WHY, "line %d: %s", error.line, error.text);
		json_decref(root);
		return KV_INVALID_PARAMS;
	}
	const char *name;
	json_t *value;
	char text[512];
	int status = KV_OK;
	json_object_foreach(root, name, value)
	{
		if (text_of(value, text, sizeof(text))) {
			status = settings_set(settings, name, text, why);
		} else {
			snprintf(why, SETTINGS_WHY, "%.100s: not a text, a number, true or false", name);
			status = KV_INVALID_PARAMS;
		}
		if (status)
			break;
	}
	json_decref(root);
	return status;
}
