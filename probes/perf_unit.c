/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sites themselves: one object file per binary, made from perf_points.def. The binary says which
 * layers it carries (-DKVP_UNIT_RC and so on, see cmake/Probes.cmake).
 *
 * Per probe there is one function whose first bytes are the site: the arguments arrive in the registers
 * that the note names, so nothing has to be moved, and the alignment keeps the site inside one page. It
 * is built without a red zone and is always called, so the CALL that the kernel may write over the nop
 * finds no one's data below the stack pointer.
 *
 * This unit is always built -O2 -fno-lto -mno-red-zone and without sanitizers, whatever the rest is.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define _SDT_HAS_SEMAPHORES 1

#include <pthread.h>
#include <stdint.h>
#include <time.h>

#include "probes/perf_points.h"

/* The base that notes are relative to. Made here, with the retain flag, before sys/sdt.h would make it
 * without: linkers that collect sections by reference must not drop it. */
__asm__(".pushsection .stapsdt.base,\"aGR\",\"progbits\",.stapsdt.base,comdat\n"
        ".weak _.stapsdt.base\n"
        ".hidden _.stapsdt.base\n"
        "_.stapsdt.base: .space 1\n"
        ".size _.stapsdt.base, 1\n"
        ".popsection\n");

#include <sys/sdt.h>

/* On x86-64 a site is three nops: every other tool attaches to the first, kvprobe to the one that the
 * running kernel turns into a call. The bytes are exact: the kernel compares them. */
#if defined(__x86_64__)
#undef _SDT_NOP
#define _SDT_NOP                                                                                                     \
	.byte 0x90;                                                                                                  \
	.byte 0x0f;                                                                                                  \
	.byte 0x1f;                                                                                                  \
	.byte 0x44;                                                                                                  \
	.byte 0x00;                                                                                                  \
	.byte 0x00;                                                                                                  \
	.byte 0x66;                                                                                                  \
	.byte 0x2e;                                                                                                  \
	.byte 0x0f;                                                                                                  \
	.byte 0x1f;                                                                                                  \
	.byte 0x84;                                                                                                  \
	.byte 0x00;                                                                                                  \
	.byte 0x00;                                                                                                  \
	.byte 0x00;                                                                                                  \
	.byte 0x00;                                                                                                  \
	.byte 0x00
#define REG0 "rdi"
#define REG1 "rsi"
#define REG2 "rdx"
#define REG3 "rcx"
#define REG4 "r8"
#define REG5 "r9"
#elif defined(__aarch64__)
#define REG0 "x0"
#define REG1 "x1"
#define REG2 "x2"
#define REG3 "x3"
#define REG4 "x4"
#define REG5 "x5"
#else
#error "kvprobe's probe ABI is defined for x86-64 and aarch64"
#endif

#define COLD_FN __attribute__((noinline, cold))
#if defined(__clang__)
#define SITE_FN __attribute__((noinline, cold, aligned(32)))
#else
#define SITE_FN __attribute__((noinline, noclone, cold, aligned(32)))
#endif

uint64_t perf_clock_ns(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* --- the fork guard ---------------------------------------------------------------------------- */
/*
 * A child that fork() makes inherits sites that the kernel has turned into calls, but not the trampoline
 * they call. So after a fork every site of the child must prove itself once: it fires again when its own
 * bytes are not a call. What is held back is counted where the tool can read it.
 */
static uint32_t fork_generation;
static volatile uint64_t skipped_fork __attribute__((used));

static void count_the_fork(void)
{
	fork_generation++;
	skipped_fork = 0;
}

__attribute__((constructor)) static void install_fork_guard(void)
{
	pthread_atfork(NULL, NULL, count_the_fork);
}

typedef void (*site_fn)(void);

static COLD_FN bool site_is_whole_again(uint32_t *generation, site_fn site)
{
#if defined(__x86_64__)
	/* Offset 1: the 5-byte form, a CALL. Offset 6: the 10-byte form, a LEA of 5 bytes and a CALL. */
	const volatile uint8_t *bytes = (const volatile uint8_t *)(uintptr_t)site;
	if (bytes[1] == 0xe8 || bytes[11] == 0xe8) {
		__atomic_fetch_add(&skipped_fork, 1, __ATOMIC_RELAXED);
		return false;
	}
#else
	(void)site;
#endif
	__atomic_store_n(generation, fork_generation, __ATOMIC_RELAXED);
	return true;
}

/* Unused in a unit without layers. */
__attribute__((unused)) static inline bool may_fire(uint32_t *generation, site_fn site)
{
	if (__builtin_expect(__atomic_load_n(generation, __ATOMIC_RELAXED) == fork_generation, 1))
		return true;
	return site_is_whole_again(generation, site);
}

/*
 * The safety note: this binary's sites have no red zone beneath them and are behind the fork guard. The
 * tool takes the optimised form only where it finds this. Owner "kvprobe", type 1; four 32-bit words
 * (version, flags: 1 no red zone, 2 fork guard, layers, 0), then two link-time addresses: the count of
 * firings that the fork guard held back, and the base as in the stapsdt notes.
 */
#if defined(KVP_UNIT_PY)
#define HAS_PY 2
#else
#define HAS_PY 0
#endif
#if defined(KVP_UNIT_RC)
#define HAS_RC 4
#else
#define HAS_RC 0
#endif
#if defined(KVP_UNIT_CLIENT)
#define HAS_CLIENT 8
#else
#define HAS_CLIENT 0
#endif
#if defined(KVP_UNIT_TRANSFER)
#define HAS_TRANSFER 16
#else
#define HAS_TRANSFER 0
#endif
#if defined(KVP_UNIT_MASTER)
#define HAS_MASTER 32
#else
#define HAS_MASTER 0
#endif
#if defined(KVP_UNIT_XFER)
#define HAS_XFER 64
#else
#define HAS_XFER 0
#endif
#define STR_(x) #x
#define STR(x)  STR_(x)

__asm__(".pushsection .note.kvprobe,\"\",\"note\"\n"
        ".balign 4\n"
        ".4byte 2f-1f, 4f-3f, 1\n"
        "1: .asciz \"kvprobe\"\n"
        "2: .balign 4\n"
        "3: .4byte 1, 3, " STR(HAS_PY | HAS_RC | HAS_CLIENT | HAS_TRANSFER | HAS_MASTER |
                               HAS_XFER) ", 0\n"
                                         ".8byte skipped_fork\n"
                                         ".8byte _.stapsdt.base\n"
                                         "4: .balign 4\n"
                                         ".popsection\n");

/* --- one key ------------------------------------------------------------------------------------- */

/* The semaphores begin a page of their own. lld gives relocated read-only data and writable data a segment each,
 * which share a page of the file; the kernel, which knows a semaphore by its place in the file, would count in the
 * copy of that page that is mapped first, and the worker would see nothing. */
#if defined(__x86_64__)
#define SEMAPHORE_PAGE "4096"
#else
#define SEMAPHORE_PAGE "65536"
#endif
__asm__(".pushsection .probes,\"aw\",\"progbits\"\n.balign " SEMAPHORE_PAGE "\n.popsection\n");

#define SEMAPHORE_OF(symbol)                                                                                         \
	".globl " symbol "\n.hidden " symbol "\n.type " symbol ", @object\n.size " symbol ", 2\n" symbol             \
	": .2byte 0\n"
#define SEMAPHORE_ASM(name) SEMAPHORE_OF("kvstore_" #name "_semaphore")

#define DEFINE_KEY(NAME)                                                                                             \
	__asm__(".pushsection .probes,\"aw\",\"progbits\"\n.balign 4\n"                                              \
	        ".globl kvp_watched_" #NAME "\n.hidden kvp_watched_" #NAME "\n"                                      \
	        ".type kvp_watched_" #NAME ", @object\n.size kvp_watched_" #NAME ", 4\n"                             \
	        "kvp_watched_" #NAME ":\n" SEMAPHORE_ASM(NAME) SEMAPHORE_ASM(NAME##__start) ".popsection\n");        \
	extern volatile unsigned short kvstore_##NAME##_semaphore KVP_HIDDEN;                                        \
	extern volatile unsigned short kvstore_##NAME##__start_semaphore KVP_HIDDEN;                                 \
                                                                                                                     \
	static SITE_FN void site_##NAME(uint64_t a, uint64_t b, uint64_t c, uint64_t d, int64_t e, uint64_t f)       \
	{                                                                                                            \
		register uint64_t elapsed_ns __asm__(REG0) = a;                                                      \
		register uint64_t bytes __asm__(REG1) = b;                                                           \
		register uint64_t n_keys __asm__(REG2) = c;                                                          \
		register uint64_t n_failed __asm__(REG3) = d;                                                        \
		register int64_t rc __asm__(REG4) = e;                                                               \
		register uint64_t op_id __asm__(REG5) = f;                                                           \
		STAP_PROBE6(kvstore, NAME, elapsed_ns, bytes, n_keys, n_failed, rc, op_id);                          \
	}                                                                                                            \
	static SITE_FN void site_start_##NAME(uint64_t a, uint64_t b, uint64_t c)                                    \
	{                                                                                                            \
		register uint64_t op_id __asm__(REG0) = a;                                                           \
		register uint64_t n_keys __asm__(REG1) = b;                                                          \
		register uint64_t bytes_offered __asm__(REG2) = c;                                                   \
		STAP_PROBE3(kvstore, NAME##__start, op_id, n_keys, bytes_offered);                                   \
	}                                                                                                            \
	static inline void fire_start_##NAME(uint64_t op_id, uint64_t n_keys, uint64_t bytes_offered)                \
	{                                                                                                            \
		static uint32_t generation;                                                                          \
		if (kvstore_##NAME##__start_semaphore && may_fire(&generation, (site_fn)site_start_##NAME))          \
			site_start_##NAME(op_id, n_keys, bytes_offered);                                             \
	}                                                                                                            \
	static inline void fire_done_##NAME(uint64_t elapsed_ns, uint64_t bytes, uint64_t n_keys, uint64_t n_failed, \
	                                    int64_t rc, uint64_t op_id)                                              \
	{                                                                                                            \
		static uint32_t generation;                                                                          \
		if (kvstore_##NAME##_semaphore && may_fire(&generation, (site_fn)site_##NAME))                       \
			site_##NAME(elapsed_ns, bytes, n_keys, n_failed, rc, op_id);                                 \
	}                                                                                                            \
	COLD_FN uint64_t kvp_start_##NAME(uint64_t op_id, uint64_t n_keys, uint64_t bytes_offered)                   \
	{                                                                                                            \
		uint64_t now = perf_clock_ns();                                                                      \
		fire_start_##NAME(op_id, n_keys, bytes_offered);                                                     \
		return now;                                                                                          \
	}                                                                                                            \
	COLD_FN void kvp_done_##NAME(uint64_t start_ns, uint64_t bytes, uint64_t n_keys, uint64_t n_failed,          \
	                             int64_t rc, uint64_t op_id)                                                     \
	{                                                                                                            \
		if (kvstore_##NAME##_semaphore)                                                                      \
			fire_done_##NAME(elapsed_since(start_ns), bytes, n_keys, n_failed, rc, op_id);               \
	}

/* A call that began unwatched has no start: it reports 0. A timed call reports at least 1.
 * Unused in a unit without layers. */
__attribute__((unused)) static uint64_t elapsed_since(uint64_t start_ns)
{
	if (start_ns == 0)
		return 0;
	uint64_t now = perf_clock_ns();
	return now > start_ns ? now - start_ns : 1;
}

/* What someone else has measured. */
#define DEFINE_RECORD(NAME)                                                                                          \
	COLD_FN void kvp_record_##NAME(uint64_t elapsed_ns, uint64_t bytes, uint64_t n_keys, uint64_t n_failed,      \
	                               int64_t rc, uint64_t op_id)                                                   \
	{                                                                                                            \
		fire_start_##NAME(op_id, n_keys, bytes);                                                             \
		fire_done_##NAME(elapsed_ns, bytes, n_keys, n_failed, rc, op_id);                                    \
	}

#ifdef KVP_UNIT_PY
#define DEFINE_PY(NAME) DEFINE_KEY(NAME)
#else
#define DEFINE_PY(NAME)
#endif
#ifdef KVP_UNIT_RC
#define DEFINE_RC(NAME) DEFINE_KEY(NAME)
#else
#define DEFINE_RC(NAME)
#endif
#ifdef KVP_UNIT_CLIENT
#define DEFINE_CLIENT(NAME) DEFINE_KEY(NAME)
#else
#define DEFINE_CLIENT(NAME)
#endif
#ifdef KVP_UNIT_TRANSFER
#define DEFINE_TRANSFER(NAME) DEFINE_KEY(NAME)
#else
#define DEFINE_TRANSFER(NAME)
#endif
#ifdef KVP_UNIT_MASTER
#define DEFINE_MASTER(NAME) DEFINE_KEY(NAME)
#else
#define DEFINE_MASTER(NAME)
#endif
#ifdef KVP_UNIT_XFER
#define DEFINE_XFER(NAME) DEFINE_KEY(NAME) DEFINE_RECORD(NAME)
#else
#define DEFINE_XFER(NAME)
#endif

#define PERF_POINT(NAME, LAYER, LEVEL, site, meaning) DEFINE_##LAYER(NAME)
#include "perf_points.def"
#undef PERF_POINT

/* --- op_log: the per-key results of one logged call, RealClient layer ---------------------------- */
#ifdef KVP_UNIT_RC
__asm__(".pushsection .probes,\"aw\",\"progbits\"\n.balign 2\n" SEMAPHORE_ASM(op_log) ".popsection\n");

static SITE_FN void site_op_log(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f)
{
	register uint64_t block __asm__(REG0) = a;
	register uint64_t block_bytes __asm__(REG1) = b;
	register uint64_t op_id __asm__(REG2) = c;
	register uint64_t elapsed_ns __asm__(REG3) = d;
	register uint64_t op __asm__(REG4) = e;
	register uint64_t n_keys __asm__(REG5) = f;
	STAP_PROBE6(kvstore, op_log, block, block_bytes, op_id, elapsed_ns, op, n_keys);
}

COLD_FN void kvp_op_log(const void *block, uint64_t block_bytes, uint64_t op_id, uint64_t elapsed_ns, uint64_t op,
                        uint64_t n_keys)
{
	static uint32_t generation;
	if (kvstore_op_log_semaphore && may_fire(&generation, (site_fn)site_op_log))
		site_op_log((uint64_t)(uintptr_t)block, block_bytes, op_id, elapsed_ns, op, n_keys);
}
#endif

/* --- the site on which kvprobe doctor tries itself: of another provider, so that no one takes the tool for a worker
 * --- */
#ifdef KVP_UNIT_SELF
__asm__(".pushsection .probes,\"aw\",\"progbits\"\n.balign 2\n" SEMAPHORE_OF(
        "kvprobe_self_test_semaphore") ".popsection\n");
extern volatile unsigned short kvprobe_self_test_semaphore KVP_HIDDEN;

static SITE_FN void site_self_test(uint64_t a, uint64_t b, uint64_t c, uint64_t d, int64_t e, uint64_t f)
{
	register uint64_t elapsed_ns __asm__(REG0) = a;
	register uint64_t bytes __asm__(REG1) = b;
	register uint64_t n_keys __asm__(REG2) = c;
	register uint64_t n_failed __asm__(REG3) = d;
	register int64_t rc __asm__(REG4) = e;
	register uint64_t op_id __asm__(REG5) = f;
	STAP_PROBE6(kvprobe, self_test, elapsed_ns, bytes, n_keys, n_failed, rc, op_id);
}

KVP_HIDDEN bool kvp_self_test(uint64_t elapsed_ns, uint64_t bytes, uint64_t n_keys);
COLD_FN bool kvp_self_test(uint64_t elapsed_ns, uint64_t bytes, uint64_t n_keys)
{
	static uint32_t generation;
	if (!kvprobe_self_test_semaphore || !may_fire(&generation, (site_fn)site_self_test))
		return false;
	site_self_test(elapsed_ns, bytes, n_keys, 0, 0, 0);
	return true;
}
#endif
