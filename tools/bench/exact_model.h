/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every key must show for a call, told from the call's arguments and returned results alone. This is the
 * reference of bench exactness: it knows the documented rules (docs/architecture.md, docs/probes.md), uses
 * nothing of the probes, and sees nothing that a caller of kvstore.h cannot see.
 */
#ifndef KVPROBE_BENCH_EXACT_MODEL_H
#define KVPROBE_BENCH_EXACT_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PERF_POINT(NAME, LAYER, LEVEL, site, meaning) KEY_##NAME,
enum perf_key {
#include "perf_points.def"
	KEY_COUNT
};
#undef PERF_POINT

struct tally {
	uint64_t calls, failed_calls, keys, failed_keys, bytes;
};

/* One thread's reference. */
struct model {
	uint64_t public_calls;
	struct tally key[KEY_COUNT];
};

/* One key of a call and what came back for it. */
struct outcome {
	size_t key_len; /* 1 to 4096, or the key is refused by the client */
	uint64_t size;  /* bytes offered, or the destination's size */
	int64_t result; /* as returned */
	bool duplicate; /* a put of a key that the caller knows to be there */
};

const char *model_key_name(enum perf_key key);
void model_merge(struct model *into, const struct model *from);

/* One function per public call. lists_match false: NULL lists, which fail every key. */
void model_setup(struct model *model, uint64_t segment_bytes, int status);
void model_close(struct model *model, uint64_t segment_bytes, int status);
void model_register(struct model *model, uint64_t size, int status);
void model_unregister(struct model *model, int status);
void model_put(struct model *model, const struct outcome *one, bool fits_local_buffer);
void model_put_from(struct model *model, const struct outcome *one, bool config_fits);
void model_batch_put_from(struct model *model, const struct outcome *all, size_t count);
void model_batch_put_multi(struct model *model, const struct outcome *all, size_t count, bool lists_match);
void model_get_into(struct model *model, const struct outcome *one);
void model_get_buffer(struct model *model, const struct outcome *one);
void model_batch_get_into(struct model *model, const struct outcome *all, size_t count);
void model_batch_get_multi(struct model *model, const struct outcome *all, size_t count, bool lists_match);
void model_is_exist(struct model *model, const struct outcome *one);
void model_batch_is_exist(struct model *model, const struct outcome *all, size_t count);
void model_get_size(struct model *model, const struct outcome *one);
void model_remove(struct model *model, const struct outcome *one);
void model_remove_all(struct model *model, int64_t result);
void model_replica_desc(struct model *model, const struct outcome *all, size_t count);
/* NULL instead of keys: the public key alone fires, every key failed. NULL instead of a store: nothing does. */
void model_null_keys(struct model *model, enum perf_key key, size_t count);
void model_null_store(struct model *model);

#endif
