/* SPDX-License-Identifier: Apache-2.0 */
/* The client's life, and its registered buffers. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "kvstore_status.h"
#include "store/base/clock.h"
#include "store/base/log.h"
#include "store/base/op_id.h"
#include "store/base/parse.h"
#include "store/client/mc_log_sink.h"
#include "store/client/op_log.h"
#include "store/client/rc_internal.h"

#define SMALLEST_SIZE       1024u
#define LARGEST_BUFFER      ((uint64_t)1 << 40)
#define FIRST_PORT          12300
#define LAST_PORT           14300
#define TRANSFER_TIMEOUT_MS 60000
#define FLUSH_NS            (2 * KV_NS_PER_S)

struct real_client *rc_create(void)
{
	struct real_client *rc = calloc(1, sizeof(*rc));
	if (!rc)
		return NULL;
	mc_log_open();
	rc->segment.fd = -1;
	pthread_mutex_init(&rc->lifecycle, NULL);
	pthread_mutex_init(&rc->drain_lock, NULL);
	pthread_cond_init(&rc->drained, NULL);
	return rc;
}

/* Set up before a fork: the threads are the parent's, and so is all that they use. */
static bool is_parents(struct real_client *rc)
{
	return atomic_load(&rc->state) != RC_IDLE && rc->fork_generation != rc_fork_generation;
}

void rc_destroy(struct real_client *rc)
{
	if (!rc || is_parents(rc))
		return;
	if (atomic_load(&rc->state) == RC_OPEN)
		rc_close(rc, kv_op_id_new());
	pthread_cond_destroy(&rc->drained);
	pthread_mutex_destroy(&rc->drain_lock);
	pthread_mutex_destroy(&rc->lifecycle);
	free(rc);
}

bool rc_is_set_up(struct real_client *rc)
{
	return rc && atomic_load(&rc->state) == RC_OPEN && rc->fork_generation == rc_fork_generation;
}

/* --- setup ------------------------------------------------------------------------------------------------ */

static bool size_is_valid(uint64_t size)
{
	return size == 0 || (size >= SMALLEST_SIZE && size <= SIZE_MAX / 2);
}

int rc_check_protocol(const char *protocol)
{
	if (!protocol || strcasecmp(protocol, "tcp") == 0)
		return KV_OK;
	if (strcasecmp(protocol, "rdma") == 0) {
		kv_warn("protocol rdma: no RDMA transport here; using tcp");
		return KV_OK;
	}
	kv_error("unknown protocol %.32s", protocol);
	return KV_INVALID_PARAMS;
}

static int check_setup(const struct rc_setup *setup, struct kv_hostport *host)
{
	if (!setup || !setup->local_hostname || !setup->master_server_addr || !setup->master_server_addr[0])
		return KV_INVALID_PARAMS;
	if (kv_hostport_parse(host, setup->local_hostname)) {
		kv_error("setup: %.64s is not a host or host:port", setup->local_hostname);
		return KV_INVALID_PARAMS;
	}
	if (!size_is_valid(setup->global_segment_size) || !size_is_valid(setup->local_buffer_size) ||
	    setup->local_buffer_size > LARGEST_BUFFER) {
		kv_error("setup: sizes are 0 or at least %u bytes, the local buffer at most 1 TiB", SMALLEST_SIZE);
		return KV_INVALID_PARAMS;
	}
	return rc_check_protocol(setup->protocol);
}

static int open_data_plane(struct real_client *rc, struct kv_hostport *host)
{
	uint16_t port_min = (uint16_t)kv_env_u64("MC_STORE_CLIENT_MIN_PORT", FIRST_PORT, 1, UINT16_MAX);
	uint16_t port_max = (uint16_t)kv_env_u64("MC_STORE_CLIENT_MAX_PORT", LAST_PORT, 1, UINT16_MAX);
	int status = transfer_create(&rc->service.transfer, host->host, &host->port, port_min, port_max);
	if (status)
		return status;
	kv_hostport_format(rc->endpoint, host);
	rc->service.endpoint = kv_str(rc->endpoint);
	rc->service.transfer_ns =
	        kv_env_u64("MC_TRANSFER_TIMEOUT_MS", TRANSFER_TIMEOUT_MS, 1, 3600000) * KV_NS_PER_MS;
	return KV_OK;
}

static int open_memory(struct real_client *rc, const struct rc_setup *setup)
{
	int status = local_buffer_init(&rc->local, setup->local_buffer_size);
	if (status)
		return status;
	if (rc->local.mem.base)
		status = transfer_register(rc->service.transfer, rc->local.mem.base, rc->local.mem.size);
	if (status == KV_OK && setup->global_segment_size) {
		status = kv_mem_map(&rc->segment, setup->global_segment_size, -1, "kvstore-segment");
		rc->segment_id = kv_id_new();
		if (status == KV_OK)
			status = transfer_add_segment(rc->service.transfer, rc->segment_id, &rc->segment);
	}
	return status;
}

static int join_pool(struct real_client *rc, const char *master, uint64_t op_id)
{
	struct kvm_segment segment = {.id = rc->segment_id,
	                              .endpoint = rc->service.endpoint,
	                              .base = (uint64_t)(uintptr_t)rc->segment.base,
	                              .size = rc->segment.size,
	                              .transports = transfer_transports(rc->service.transfer)};
	rc->service.client = kv_id_new();
	int status = master_conn_open(&rc->service.master, master);
	if (status == KV_OK)
		status = membership_join(&rc->membership, rc->service.master, rc->service.client, &segment,
		                         rc->segment.base ? 1 : 0, op_id);
	if (status)
		kv_error("setup: cannot join the pool of master %.64s: %d", master, status);
	return status;
}

/* Undo whatever setup has done, in the opposite order. */
static void tear_down(struct real_client *rc, uint64_t op_id)
{
	membership_leave(rc->membership, op_id);
	rc->membership = NULL;
	master_conn_close(rc->service.master);
	/* The data server first: then nothing reaches the segment any more. */
	transfer_destroy(rc->service.transfer);
	rc->service = (struct client_service){0};
	kv_prefault_stop(&rc->prefault);
	kv_mem_unmap(&rc->segment);
	local_buffer_destroy(&rc->local);
}

static int setup_internal(struct real_client *rc, uint64_t op_id, const struct rc_setup *setup,
                          struct kv_hostport *host)
{
	PERF_SCOPE(RC_SETUP_INTERNAL, perf, op_id, 0, 0);
	int status = open_data_plane(rc, host);
	if (status)
		return (int)perf_result(&perf, 0, 0, status);
	status = open_memory(rc, setup);
	if (status == KV_OK)
		status = join_pool(rc, setup->master_server_addr, op_id);
	if (status)
		tear_down(rc, op_id);
	else if (rc->segment.base)
		kv_prefault_start(&rc->prefault, &rc->segment);
	return (int)perf_result(&perf, 0, 0, status);
}

int rc_setup(struct real_client *rc, uint64_t op_id, const struct rc_setup *setup)
{
	PERF_SCOPE(RC_SETUP_REAL, perf, op_id, 0, 0);
	struct kv_hostport host;

	if (!rc || is_parents(rc))
		return (int)perf_result(&perf, 0, 0, rc ? KV_UNAVAILABLE_IN_CURRENT_STATUS : KV_INTERNAL_ERROR);
	int status = check_setup(setup, &host);
	if (status)
		return (int)perf_result(&perf, 0, 0, status);
	pthread_mutex_lock(&rc->lifecycle);
	if (atomic_load(&rc->state) == RC_IDLE)
		status = setup_internal(rc, op_id, setup, &host);
	else
		status = KV_INVALID_PARAMS;
	if (status == KV_OK) {
		rc->fork_generation = rc_fork_generation;
		atomic_store(&rc->state, RC_OPEN);
	}
	pthread_mutex_unlock(&rc->lifecycle);
	return (int)perf_result(&perf, 0, 0, status);
}

/* --- close ------------------------------------------------------------------------------------------------ */

/* Until the last call has left; each ends by its own deadlines. */
static void wait_for_calls(struct real_client *rc)
{
	pthread_mutex_lock(&rc->drain_lock);
	while (atomic_load(&rc->in_flight))
		pthread_cond_wait(&rc->drained, &rc->drain_lock);
	pthread_mutex_unlock(&rc->drain_lock);
}

static void close_internal(struct real_client *rc, uint64_t op_id)
{
	PERF_SCOPE(RC_TEARDOWN_ALL_INTERNAL, perf, op_id, 0, 0);
	atomic_store(&rc->state, RC_CLOSING);
	wait_for_calls(rc);
	tear_down(rc, op_id);
	atomic_store(&rc->state, RC_IDLE);
	mc_log_flush(FLUSH_NS);
	perf_result(&perf, 0, 0, KV_OK);
}

int rc_close(struct real_client *rc, uint64_t op_id)
{
	PERF_SCOPE(RC_TEARDOWN_ALL, perf, op_id, 0, 0);
	if (!rc || is_parents(rc))
		return (int)perf_result(&perf, 0, 0, rc ? KV_UNAVAILABLE_IN_CURRENT_STATUS : KV_INTERNAL_ERROR);
	pthread_mutex_lock(&rc->lifecycle);
	if (atomic_load(&rc->state) == RC_OPEN)
		close_internal(rc, op_id);
	pthread_mutex_unlock(&rc->lifecycle);
	return (int)perf_result(&perf, 0, 0, KV_OK);
}

/* --- the small ones ----------------------------------------------------------------------------------------- */

int rc_health_check(struct real_client *rc, uint64_t op_id)
{
	RC_CALL(call, rc);
	if (call.status)
		return 1;
	return membership_ping(rc->membership, op_id) ? 2 : 0;
}

int rc_get_hostname(struct real_client *rc, char *buf, size_t len)
{
	RC_CALL(call, rc);
	if (call.status || !buf)
		return KV_INTERNAL_ERROR;
	size_t need = strlen(rc->endpoint) + 1;
	if (len < need)
		return KV_INTERNAL_ERROR;
	memcpy(buf, rc->endpoint, need);
	return KV_OK;
}

static int register_internal(const struct rc_call *call, uint64_t op_id, void *ptr, size_t size)
{
	PERF_SCOPE(RC_REGISTER_BUFFER_INTERNAL, perf, op_id, 0, size);
	int status = transfer_register(call->rc->service.transfer, ptr, size);
	return (int)perf_result(&perf, status ? 0 : size, 0, status);
}

static int register_status(const struct rc_call *call, const void *ptr, size_t size)
{
	if (call->status)
		return call->status;
	return ptr && size && size <= UINTPTR_MAX - (uintptr_t)ptr ? KV_OK : KV_INVALID_PARAMS;
}

int rc_register_buffer(struct real_client *rc, uint64_t op_id, void *ptr, size_t size)
{
	RC_CALL(call, rc);
	struct op_log log = op_log_begin(KVP_OP_REGISTER, op_id);
	PERF_SCOPE_TIMED(RC_REGISTER_BUFFER, perf, op_id, 0, size, log.probe || log.text);

	int status = register_status(&call, ptr, size);
	if (status == KV_OK)
		status = register_internal(&call, op_id, ptr, size);
	perf_result(&perf, status ? 0 : size, 0, status);
	op_log_end(&log, perf.start_ns, 0, size, 0, NULL, NULL);
	return status;
}

int rc_unregister_buffer(struct real_client *rc, uint64_t op_id, void *ptr)
{
	RC_CALL(call, rc);
	PERF_SCOPE(RC_UNREGISTER_BUFFER, perf, op_id, 0, 0);
	int status = call.status ? call.status : transfer_unregister(rc->service.transfer, ptr);
	return (int)perf_result(&perf, 0, 0, status);
}
