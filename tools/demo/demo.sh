#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ./dev demo: a worker puts, looks up and gets KV blocks; from two other processes kvprobe log prints what each call
# did, key by key, and kvprobe stat what all of them cost. Exits 0 only if all of it appeared and agrees.
set -euo pipefail

repo=$(cd "$(dirname "$0")/../.." && pwd)
bin=${KVPROBE_BUILD:-$repo/build}/bin
lib=${KVPROBE_BUILD:-$repo/build}/lib/libkvstore.so
work=$(mktemp -d -t kvprobe-demo-XXXXXX)
worker=''
log=''
stat=''

# Whatever happens, nothing that was started here stays behind.
cleanup() {
	local pid
	for pid in $worker $log $stat; do
		kill -CONT "$pid" 2>/dev/null || true
		kill "$pid" 2>/dev/null || true
	done
	wait
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

heading() {
	if [ -t 1 ]; then
		printf '\n\033[1m== %s\033[0m\n' "$*"
	else
		printf '\n== %s\n' "$*"
	fi
}

fail() {
	printf 'demo: %s\n' "$*" >&2
	exit 1
}

# wait_for SECONDS WHAT COMMAND...: until the command succeeds.
wait_for() {
	local deadline=$((SECONDS + $1)) what=$2
	shift 2
	until "$@"; do
		[ "$SECONDS" -lt "$deadline" ] || fail "$what did not happen in time"
		sleep 0.01
	done
}

# attached FILE: the tool's line, or its end with an explanation.
attached() {
	grep -qs '^attached:' "$1"
}

tool_failed() {
	sed 's/^/  /' "$1" >&2
	fail "kvprobe could not attach"
}

# The end of a tool that was told to end.
finish() {
	local pid=$1 name=$2 status=0
	kill -INT "$pid" 2>/dev/null || true
	wait "$pid" || status=$?
	[ "$status" = 0 ] || fail "$name ended with status $status: $(tail -n 3 "$work/$name.err")"
}

start_tool() {
	local name=$1
	shift
	"$bin/kvprobe" "$name" "$@" >"$work/$name.out" 2>"$work/$name.err" &
	started=$!
	wait_for 20 "attaching kvprobe $name" eval "attached '$work/$name.err' || ! kill -0 $started 2>/dev/null"
	attached "$work/$name.err" || tool_failed "$work/$name.err"
}

for program in store_connector_bench kvprobe; do
	[ -x "$bin/$program" ] || fail "$bin/$program is not built: ./dev build"
done

requests=40
layers=8
heading "A worker starts: $requests requests of $layers layers, 256 KiB each, the master inside it"
# It is over in a moment: it holds still until the tools have attached, so that they see its first call. The shell
# that becomes the worker has its name and the library already, so the tools find it then.
LD_PRELOAD=$lib bash -c 'printf store_connector >/proc/$$/comm; kill -STOP $$; exec "$@"' worker \
	"$bin/store_connector_bench" --master embedded --num_requests $requests --num_layers $layers \
	--layer_size 256K --warmup_requests 0 --global_segment_size 256M --scenario all \
	>"$work/worker.out" 2>"$work/worker.err" &
worker=$!
wait_for 10 "starting the worker" grep -qs '^State:.T' "/proc/$worker/status"
echo "pid $worker"

heading "Two tools attach to it; it knows nothing of them"
start_tool log -p "$worker"
log=$started
start_tool stat -p "$worker" --level KEY_MODULE
stat=$started
echo "kvprobe log:  $(grep '^attached:' "$work/log.err")"
echo "kvprobe stat: $(grep '^attached:' "$work/stat.err")"
kill -CONT "$worker"
status=0
wait_for 20 "the worker's end" eval "! kill -0 $worker 2>/dev/null"
wait "$worker" || status=$?
worker=''
[ "$status" = 0 ] || fail "the worker ended with status $status: $(cat "$work/worker.out" "$work/worker.err")"
finish "$log" log
log=''
finish "$stat" stat
stat=''

heading "What the worker says of itself"
cat "$work/worker.out"

heading "kvprobe log: every call, every key (the first of each kind, two keys of each; $(wc -l <"$work/log.out") lines in all)"
for op in register_buffer batch_put_from_multi_buffers batch_is_exist batch_get_into_multi_buffers; do
	grep -q "^\[$op\] " "$work/log.out" || fail "no $op in the log"
	grep -m 1 -A 2 "^\[$op\] " "$work/log.out" | awk 'NR > 1 && /^\[/ { over = 1 } !over'
done

heading "kvprobe stat: counted in the kernel"
cat "$work/stat.out"
tail -n 1 "$work/stat.err"

# The two agree with each other and with the worker.
agree() {
	local op=$1 key=$2 in_log in_stat
	in_log=$(grep -c "^\[$op\] " "$work/log.out" || true)
	in_stat=$(awk -v key="$key" '{ for (i = 1; i < NF; i++) if ($i == key) { print $(i + 1); exit } }' "$work/stat.out")
	[ "$in_log" = "$requests" ] || fail "$in_log calls of $op in the log instead of $requests"
	[ "$in_stat" = "$requests" ] || fail "kvprobe stat shows '$in_stat' calls of $key instead of $requests"
}
agree batch_put_from_multi_buffers RC_BATCH_PUT_MULTI
agree batch_is_exist RC_BATCH_IS_EXIST
agree batch_get_into_multi_buffers RC_BATCH_GET_INTO_MULTI
keys=$(grep -c '^success=1 ' "$work/log.out" || true)
[ "$keys" = $((3 * requests * layers)) ] || fail "$keys keys succeeded in the log instead of $((3 * requests * layers))"

heading "All three calls, $keys keys, seen from outside, and both tools agree"
