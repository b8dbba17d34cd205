/* SPDX-License-Identifier: Apache-2.0 */
/* The other end of a master's connection: sends requests, waits for answers, never longer than a minute. */
#ifndef KV_TESTS_WIRE_PEER_H
#define KV_TESTS_WIRE_PEER_H

#include <string.h>
#include <unistd.h>

#include "kvstore_status.h"
#include "store/base/clock.h"
#include "store/base/net.h"
#include "store/wire/wire.h"
#include "tests/unit/kv_cmocka.h"

static inline uint64_t soon(void)
{
	return kv_now_ns() + 60 * KV_NS_PER_S;
}

static inline int peer_connect(uint16_t port)
{
	struct kv_hostport to = {.host = "127.0.0.1", .port = port};
	int fd = kv_connect(&to, soon());
	assert_true(fd >= 0);
	return fd;
}

static inline int peer_send_bytes(int fd, const void *bytes, size_t size)
{
	struct iovec iov = {(void *)(uintptr_t)bytes, size};
	return kv_send_all(fd, &iov, 1, soon());
}

/* The frame of a request. */
static inline uint8_t *peer_frame(struct kv_arena *arena, uint16_t type, uint64_t number, const void *request,
                                  size_t *size)
{
	struct kvw_header header = {.type = type, .request = number, .op_id = number + 1000};
	uint8_t *frame;
	const char *why;
	assert_int_equal(kvw_frame_encode(arena, &header, request, &frame, size, &why), KV_OK);
	return frame;
}

static inline void peer_send(int fd, struct kv_arena *arena, uint16_t type, uint64_t number, const void *request)
{
	size_t size;
	uint8_t *frame = peer_frame(arena, type, number, request, &size);
	assert_int_equal(peer_send_bytes(fd, frame, size), KV_OK);
}

/* The next answer, which must be this one. */
static inline void *peer_receive(int fd, struct kv_arena *arena, uint16_t type, uint64_t number)
{
	uint8_t bytes[KVW_HEADER_SIZE];
	struct kvw_header header;
	const char *why;
	void *answer;
	assert_int_equal(kv_recv_all(fd, bytes, sizeof(bytes), soon()), KV_OK);
	assert_int_equal(kvw_header_decode(&header, bytes, &why), KV_OK);
	assert_int_equal(header.type, type);
	assert_int_equal(header.flags, KVW_RESPONSE);
	assert_int_equal(header.request, number);
	assert_int_equal(header.op_id, number + 1000);
	uint8_t *payload = kv_arena_alloc(arena, header.payload);
	assert_int_equal(kv_recv_all(fd, payload, header.payload, soon()), KV_OK);
	assert_int_equal(kvw_payload_decode(arena, &header, payload, &answer, &why), KV_OK);
	return answer;
}

static inline void *peer_ask(int fd, struct kv_arena *arena, uint16_t type, uint64_t number, const void *request)
{
	peer_send(fd, arena, type, number, request);
	return peer_receive(fd, arena, type, number);
}

/* Nothing more comes: the other side has closed. */
static inline bool peer_is_closed(int fd)
{
	char byte;
	return kv_recv_all(fd, &byte, 1, soon()) == KV_RPC_FAIL;
}

#endif
