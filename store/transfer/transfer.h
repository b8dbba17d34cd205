/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving bytes between a caller's buffers and ranges of segments, wherever those are. One interface; a
 * transport per way (memcpy, tcp; shm and rdma fit behind the same table). The client gathers all requests
 * of a call into one batch: all of them, to all owners, are in flight at once, and each has its own result.
 *
 * Data flow: transfer_submit (starts everything, does not block on the network)
 * -> transfer_wait (drives it to the end or the deadline) -> read each request's status.
 */
#ifndef KV_TRANSFER_H
#define KV_TRANSFER_H

#include <stdbool.h>
#include <stdint.h>

#include "store/base/arena.h"
#include "store/base/bytes.h"
#include "store/base/mem.h"
#include "store/base/net.h"

enum kv_transport_bit { KV_VIA_MEMCPY = 1, KV_VIA_SHM = 2, KV_VIA_TCP = 4, KV_VIA_RDMA = 8 };

struct transfer;
struct transfer_batch;

/* Where the far end of a request is. The nil segment is the owner's address space: base 0, size UINT64_MAX, and of it
 * only what the owner has exposed. */
struct transfer_target {
	struct kv_id segment;
	struct kv_str endpoint; /* host:port of the owner */
	uint64_t base;          /* of the segment in the owner's address space */
	uint64_t size;          /* of the segment */
	uint64_t rkey;
	uint8_t transports; /* kv_transport_bit */
};

enum transfer_direction { TRANSFER_READ, TRANSFER_WRITE };

/* One object's transfer. The caller owns it and its fragments until transfer_wait returned. */
struct transfer_request {
	enum transfer_direction direction;
	const struct transfer_target *target;
	uint64_t offset;      /* in the segment */
	struct kv_bufs local; /* total length = bytes to move */
	int status;           /* set by transfer_wait: KV_OK, KV_TRANSFER_FAIL, KV_INVALID_PARAMS, ... */
	uint8_t via;          /* kv_transport_bit that took it */
};

/* What one transport does. All functions are thread-safe; `priv` belongs to the transport. */
struct transport_ops {
	const char *name;
	uint8_t bit;
	bool needs_registration; /* local buffers must lie in registered memory */
	int (*open)(void **priv, struct transfer *owner);
	void (*close)(void *priv);
	int (*register_memory)(void *priv, void *ptr, size_t size); /* NULL: nothing to do */
	void (*unregister_memory)(void *priv, void *ptr, size_t size);
	bool (*reaches)(void *priv, const struct transfer_target *target);
	/* Start these requests (all of one direction and for one segment); *job is the transport's handle for wait.
	 * Memory that has to last until wait comes from the arena. */
	int (*submit)(void *priv, struct transfer_request **requests, size_t count, uint64_t op_id,
	              uint64_t deadline_ns, struct kv_arena *arena, void **job);
	/* Drive several jobs of this transport to their end or the deadline; ends them. A request is done when its
	 * status is KV_OK; it comes in as KV_TRANSFER_FAIL. */
	void (*wait)(void *priv, void **jobs, size_t count, uint64_t deadline_ns);
};

/* Opens every transport that works here and, if serve_host is not NULL, a data server for the local segments on
 * serve_host:*port (0: choose one in [port_min, port_max], at most 20 tries). *port gets the port. 0 or a status. */
int transfer_create(struct transfer **out, const char *serve_host, uint16_t *port, uint16_t port_min,
                    uint16_t port_max);
/* Ends the data server and all connections, joins threads. */
void transfer_destroy(struct transfer *transfer);

/* Local segments that peers may read and write; ranges outside are refused with KV_INVALID_PARAMS. */
int transfer_add_segment(struct transfer *transfer, struct kv_id id, const struct kv_mem *mem);
void transfer_remove_segment(struct transfer *transfer, struct kv_id id); /* waits for transfers in it */
uint8_t transfer_transports(const struct transfer *transfer);             /* bits to announce in the mount */

/* Local buffers. Overlaps and unknown pointers: KV_INVALID_PARAMS. */
int transfer_register(struct transfer *transfer, void *ptr, size_t size);
int transfer_unregister(struct transfer *transfer, void *ptr);
bool transfer_is_registered(struct transfer *transfer, const void *ptr, size_t size);

/* Local buffers that peers may read and write by their addresses. Same results as transfer_register. */
int transfer_expose(struct transfer *transfer, void *ptr, size_t size);
/* Refuses transfers in it from now on, waits for those there are. */
int transfer_conceal(struct transfer *transfer, void *ptr);
/* Keeps exposed buffers from being concealed while the caller's own transfers are in them. *hold is the arena's. 0;
 * KV_INVALID_PARAMS: a piece is not wholly inside one exposed buffer; KV_INTERNAL_ERROR without memory. */
struct transfer_hold;
int transfer_hold(struct transfer *transfer, const struct kv_buf *pieces, size_t count, struct kv_arena *arena,
                  struct transfer_hold **hold);
void transfer_release(struct transfer *transfer, struct transfer_hold *hold);

/* Start count requests. Always takes all of them: what cannot start has its status at wait. The batch lives in the
 * arena; the same thread must wait for it. KV_INTERNAL_ERROR without memory: nothing was started. */
int transfer_submit(struct transfer *transfer, struct transfer_request *requests, size_t count, uint64_t op_id,
                    uint64_t deadline_ns, struct kv_arena *arena, struct transfer_batch **batch);
/* Until all have a status; those still open at the deadline get KV_TRANSFER_FAIL, and nothing touches the local
 * buffers after the return. Ends the batch. */
void transfer_wait(struct transfer *transfer, struct transfer_batch *batch, uint64_t deadline_ns);

#endif
