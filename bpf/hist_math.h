/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The buckets of a duration histogram: log-linear, 16 buckets to the octave. One definition for the kernel
 * side, which counts, and the tools, which read; it includes nothing so that both can.
 *
 * Values below 32 have a bucket each; above, a bucket is 1/16 of its octave wide, so the middle of a bucket
 * is within 1/32 (3.125 %) of every value in it. The last bucket also takes everything larger.
 */
#ifndef KVPROBE_HIST_MATH_H
#define KVPROBE_HIST_MATH_H

#define KVP_HIST_SUB_BITS 4u
#define KVP_HIST_SUB      (1u << KVP_HIST_SUB_BITS)
#define KVP_HIST_MAX_LOG2 43u /* values up to 2^44 ns, 4.9 hours, have their own bucket */
#define KVP_HIST_BUCKETS  ((KVP_HIST_MAX_LOG2 - KVP_HIST_SUB_BITS + 2) * KVP_HIST_SUB)

/* How far the middle of a bucket can be from a value in it, relative to the value. */
#define KVP_HIST_ERROR (1.0 / (2 * KVP_HIST_SUB))

/* floor(log2(value)), value > 0. No count-leading-zeros: the BPF target has none. */
static inline __attribute__((always_inline, unused)) unsigned int kvp_log2(unsigned long long value)
{
	unsigned int log = 0;
	if (value >> 32) {
		value >>= 32;
		log += 32;
	}
	if (value >> 16) {
		value >>= 16;
		log += 16;
	}
	if (value >> 8) {
		value >>= 8;
		log += 8;
	}
	if (value >> 4) {
		value >>= 4;
		log += 4;
	}
	if (value >> 2) {
		value >>= 2;
		log += 2;
	}
	return log + (unsigned int)(value >> 1);
}

/* The bucket of a value, always below KVP_HIST_BUCKETS. */
static inline __attribute__((always_inline, unused)) unsigned int kvp_hist_bucket(unsigned long long value)
{
	if (value < KVP_HIST_SUB)
		return (unsigned int)value;
	unsigned int log = kvp_log2(value);
	if (log > KVP_HIST_MAX_LOG2)
		return KVP_HIST_BUCKETS - 1;
	unsigned int sub = (unsigned int)(value >> (log - KVP_HIST_SUB_BITS)) & (KVP_HIST_SUB - 1);
	return (log - KVP_HIST_SUB_BITS + 1) * KVP_HIST_SUB + sub;
}

/* The smallest value of a bucket. */
static inline __attribute__((always_inline, unused)) unsigned long long kvp_hist_low(unsigned int bucket)
{
	if (bucket < KVP_HIST_SUB)
		return bucket;
	unsigned int shift = bucket / KVP_HIST_SUB - 1;
	return (unsigned long long)(KVP_HIST_SUB + bucket % KVP_HIST_SUB) << shift;
}

/* The largest value of a bucket (of the last one: of its regular range). */
static inline __attribute__((always_inline, unused)) unsigned long long kvp_hist_high(unsigned int bucket)
{
	return kvp_hist_low(bucket + 1) - 1;
}

#endif
