/* SPDX-License-Identifier: Apache-2.0 */
/* What the RPCs about many keys have in common. */
#ifndef KV_CLIENT_RPC_H
#define KV_CLIENT_RPC_H

#include <stdbool.h>

#include "probes/perf_points.h"
#include "store/client/client_service.h"
#include "store/wire/wire.h"

/* Some of a call's objects, in order. */
struct client_members {
	struct client_object **list;
	uint32_t count;
};

/* The objects whose status is KV_OK. False without memory. */
bool client_members_of(struct client_call *call, struct client_members *members);
/* Give every member the same status. */
void client_fail_members(const struct client_members *members, int status);
/* The members' keys as a list for a request; NULL without memory. */
struct kvm_key *client_key_list(const struct client_call *call, const struct client_members *members);
/* The limit of an RPC that has none of its own beside the connection's. */
#define CLIENT_RPC_LIMIT UINT64_MAX
/* Send a keys_req about the members (at least one). 0 or a negative status. */
int client_ask(struct client_call *call, uint64_t limit_ns, uint16_t type, const struct client_members *members,
               void **response);
/* The same for the types that answer with one code per key. 0 or the status of the whole. */
int client_call_keys(struct client_call *call, uint64_t limit_ns, uint16_t type, const struct client_members *members,
                     const struct kvm_result **codes);
/* Put the replicas of a response into the members; a member's own code, or a replica that makes no sense,
 * becomes its status. 0 or the status of the whole. */
int client_take_replicas(struct client_call *call, const struct client_members *members,
                         const struct kvm_replicas_resp *response);
/* What a probe says about objects: bytes, keys, failed keys, first code. */
void client_perf_objects(struct perf_scope *perf, const struct client_call *call);
void client_perf_members(struct perf_scope *perf, const struct client_members *members);

#endif
