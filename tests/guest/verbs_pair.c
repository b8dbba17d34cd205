/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/guest/verbs_pair.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PORT              1
#define LINK_LOCAL        0
#define QUEUE_DEPTH       16
#define REMOTE_READS      4
#define RETRIES           7
#define ANSWER_TIMER      18 /* of the verbs' table: 1.07 s; an emulated processor is slow */
#define RECEIVER_TIMER    12 /* 0.64 ms */
#define HOPS              64
#define COMPLETION_SECOND 10
#define PAGE              4096

static int failed(const char *what)
{
	printf("%s: %s\n", what, strerror(errno));
	return -1;
}

static struct ibv_context *open_device(const char *name)
{
	int count = 0;
	struct ibv_context *context = NULL;
	struct ibv_device **devices = ibv_get_device_list(&count);
	for (int i = 0; devices && i < count; i++)
		if (strcmp(ibv_get_device_name(devices[i]), name) == 0)
			context = ibv_open_device(devices[i]);
	if (devices)
		ibv_free_device_list(devices);
	return context;
}

static int make_end(struct verbs_end *end, const char *device, size_t size)
{
	struct ibv_port_attr port;
	end->context = open_device(device);
	if (!end->context)
		return failed(device);
	if (ibv_query_port(end->context, PORT, &port) || ibv_query_gid(end->context, PORT, LINK_LOCAL, &end->address))
		return failed("the port's attributes");
	end->mtu = port.active_mtu;
	end->domain = ibv_alloc_pd(end->context);
	end->completions = ibv_create_cq(end->context, QUEUE_DEPTH, NULL, NULL, 0);
	end->memory = aligned_alloc(PAGE, size);
	if (!end->domain || !end->completions || !end->memory)
		return failed("protection domain, completion queue, memory");
	memset(end->memory, 0, size);
	end->region = ibv_reg_mr(end->domain, end->memory, size,
	                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_qp_init_attr attributes = {
	        .send_cq = end->completions,
	        .recv_cq = end->completions,
	        .qp_type = IBV_QPT_RC,
	        .cap = {.max_send_wr = QUEUE_DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
	};
	end->queue = end->region ? ibv_create_qp(end->domain, &attributes) : NULL;
	return end->queue ? 0 : failed("memory region, queue pair");
}

static int connect_end(struct verbs_end *end, const struct verbs_end *peer)
{
	struct ibv_qp_attr initial = {.qp_state = IBV_QPS_INIT,
	                              .port_num = PORT,
	                              .qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE};
	struct ibv_qp_attr receive = {
	        .qp_state = IBV_QPS_RTR,
	        .path_mtu = end->mtu,
	        .dest_qp_num = peer->queue->qp_num,
	        .max_dest_rd_atomic = REMOTE_READS,
	        .min_rnr_timer = RECEIVER_TIMER,
	        .ah_attr = {.is_global = 1,
	                    .port_num = PORT,
	                    .grh = {.dgid = peer->address, .sgid_index = LINK_LOCAL, .hop_limit = HOPS}},
	};
	struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS,
	                           .timeout = ANSWER_TIMER,
	                           .retry_cnt = RETRIES,
	                           .rnr_retry = RETRIES,
	                           .max_rd_atomic = REMOTE_READS};
	errno = ibv_modify_qp(end->queue, &initial,
	                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (!errno)
		errno = ibv_modify_qp(end->queue, &receive,
		                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		                              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (!errno)
		errno = ibv_modify_qp(end->queue, &send,
		                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		                              IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
	return errno ? failed("connecting the queue pair") : 0;
}

int verbs_pair_open(struct verbs_pair *pair, const char *near_device, const char *far_device, size_t size)
{
	*pair = (struct verbs_pair){.size = size};
	if (make_end(&pair->near, near_device, size) || make_end(&pair->far, far_device, size))
		return -1;
	return connect_end(&pair->near, &pair->far) || connect_end(&pair->far, &pair->near) ? -1 : 0;
}

static void close_end(struct verbs_end *end)
{
	if (end->queue)
		ibv_destroy_qp(end->queue);
	if (end->region)
		ibv_dereg_mr(end->region);
	if (end->completions)
		ibv_destroy_cq(end->completions);
	if (end->domain)
		ibv_dealloc_pd(end->domain);
	if (end->context)
		ibv_close_device(end->context);
	free(end->memory);
}

void verbs_pair_close(struct verbs_pair *pair)
{
	close_end(&pair->near);
	close_end(&pair->far);
	*pair = (struct verbs_pair){0};
}

static int wait_for_completion(struct ibv_cq *completions)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	time_t limit = now.tv_sec + COMPLETION_SECOND;
	while (now.tv_sec < limit) {
		struct ibv_wc completion;
		int found = ibv_poll_cq(completions, 1, &completion);
		if (found)
			return found < 0 ? -1 : (int)completion.status;
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
		clock_gettime(CLOCK_MONOTONIC, &now);
	}
	return -1;
}

int verbs_pair_transfer(struct verbs_pair *pair, enum ibv_wr_opcode operation, size_t length, uint32_t key)
{
	struct ibv_sge piece = {
	        .addr = (uintptr_t)pair->near.memory, .length = (uint32_t)length, .lkey = pair->near.region->lkey};
	struct ibv_send_wr request = {
	        .sg_list = &piece, .num_sge = 1, .opcode = operation, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *refused;
	request.wr.rdma.remote_addr = (uintptr_t)pair->far.memory;
	request.wr.rdma.rkey = key;
	if (ibv_post_send(pair->near.queue, &request, &refused))
		return -1;
	return wait_for_completion(pair->near.completions);
}
