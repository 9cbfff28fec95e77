#!/bin/bash
# Two ranks with one core each, as threads and as processes, next to one rank with both: tokens a second of GPT-2 124M,
# B = 4, T = 256, 4 micro-batches a rank, by sharding. Called by `make bench BENCH=ranks`; LAYOUTS picks some of them.
# A run is ended after STEPS steps; the first one, which warms up, does not count; the median of the others does. The run
# with one rank comes first and last, so that a machine that changed its speed in between shows.
set -uo pipefail
cd "$(dirname "$0")/../.."
steps=${STEPS:-4} out=build/bench-ranks
work=(--model gpt2-124m --seq 256 --batch 4 --data README.md --val 0 --steps 100 --warmup 10 --save-every 0 --eval-every 0 --sample-every 0)
mpi=(mpirun --allow-run-as-root --oversubscribe --bind-to none -n 2)

# seconds LABEL RANKS COMMAND...: tokens a second of the whole job, the median of the steps from the second on.
speed() {
    local label=$1 ranks=$2 log=$out/log.jsonl pid
    shift 2
    rm -rf $out
    "$@" "${work[@]}" --tokens-per-step $((4 * 4 * 256 * ranks)) --out $out > $out.txt 2>&1 &
    pid=$!
    while kill -0 $pid 2> /dev/null && { [ ! -e $log ] || [ "$(wc -l < $log)" -lt "$steps" ]; }; do sleep 0.2; done
    kill -INT $pid 2> /dev/null; sleep 0.1; kill -9 $pid 2> /dev/null; wait $pid 2> /dev/null
    [ -e $log ] && [ "$(wc -l < $log)" -ge "$steps" ] || { echo "$label: $(tail -1 $out.txt)" >&2; exit 1; }
    sed -n "2,${steps}p" $log | grep -o '"ms":{[^}]*"step":[0-9.]*' | grep -o '[0-9.]*$' | sort -n |
        awk -v n=$((4 * 4 * 256 * ranks)) '{ t[NR] = $1 } END { printf "%.1f", 1e3 * n / (NR % 2 ? t[(NR + 1) / 2] : (t[NR / 2] + t[NR / 2 + 1]) / 2) }'
    rm -rf $out
}

[ "$(nproc)" -ge 2 ] || { echo "ranks: skipped, needs two cores"; exit 0; }
export OMP_NUM_THREADS=2
first=$(speed "1 rank" 1 ./train_gpt)
printf '%-8s %10s %10s %10s   tokens/s, and over 1 rank\n' sharding '1 rank' '2 threads' '2 processes'
for shard in ${LAYOUTS:-none zero1 zero2 fsdp}; do
    threads=$(speed "$shard, threads" 2 ./train_gpt --ranks 2 --shard $shard) || exit 1
    processes=skipped
    command -v mpirun > /dev/null && { processes=$(speed "$shard, processes" 2 "${mpi[@]}" ./train_gpt --shard $shard) || exit 1; }
    awk -v s=$shard -v o=$first -v t=$threads -v p=$processes 'BEGIN {
        printf "%-8s %10s %10s %10s   %.3f  %s\n", s, o, t, p, t / o, p == "skipped" ? p : sprintf("%.3f", p / o) }'
done
printf '%-8s %10s\n' again "$(speed "1 rank" 1 ./train_gpt)"
