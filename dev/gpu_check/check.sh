#!/bin/bash
# Proves the GPU path where a GPU is found, in under nine minutes, and writes gpu/<card>-<driver>.json. Called by
# `make gpu-check`, with what the Makefile knows: NVCC, CUDA_ARCHS, MAKE, KERNEL_SUITES, MODEL_SUITES, LAYOUT_SUITES, LOOKS.
#   dev/gpu_check/check.sh [--minutes N] [STAGE...]   those stages; none: all. A stage that fails stops no other; 9 minutes
#   dev/gpu_check/check.sh --list                     stages and the seconds that each may take
#   dev/gpu_check/check.sh --dry                      what each stage would run, and nothing is run
#   dev/gpu_check/check.sh --cpu --to FILE            the same on the CPU build in small, marked `cpu, not a result`
set -uo pipefail
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
unset MAKELEVEL MAKEFLAGS MFLAGS
: "${KERNEL_SUITES:=}" "${MODEL_SUITES:=}" "${LAYOUT_SUITES:=}" "${LOOKS:=}"   # empty: not called by make, which has them
: "${MAKE:=make}" "${PROGRAM:=./train_gpt}" "${BENCH:=build/g++/gpu_check}" "${JOBS:=4}"

list() {
    cat <<END
build 240 the program, the benchmark and the suites, by nvcc for this card
kernels 90 suites of the kernels on the device
rates 30 a copy, one big product
memory 60 kernels that move memory, against the copy
product 60 products of three models, against the big one
attention 60 attention, forward and backward
steps 200 whole steps of GPT-2 124M, Qwen2.5-0.5B and 1.5B, in bf16 and FP8
program 60 small runs in every layout: loss and norm of the CPU program
models 90 suites of the model
layouts 120 suites of the layouts, all ranks on this GPU
memcheck 60 compute-sanitizer memcheck on suites of kernels
racecheck 60 compute-sanitizer racecheck on suites of kernels
END
}

# ---- words and numbers ----------------------------------------------------------------------------------------------
field() { sed -nE 's/.*"'"$1"'": *("([^"]*)"|([^,}]*)).*/\2\3/p'; }   # of each line that has it
quoted() { tr '\n"\\\t' " '' " | cut -c1-200 | sed 's/ *$//'; }
row() { echo "{$1}" >> $rows; }
median() { sort -g | awk '{ v[NR] = $1 } END { if (NR) print v[int((NR + 1) / 2)] }'; }
left() { local l=$((began + minutes * 60 - SECONDS)) most=$1; echo $((l < most ? l : most)); }

# ---- suites: one process each, several at a time --------------------------------------------------------------------
# A line of JSON of one suite: what doctest counted, or how the process ended. $1: name, $2: what runs it
suite() {
    local name=$1 log=$work/$1$3.log binary=build/cuda/test_$1 began=$SECONDS status=0 counts why
    if [ ! -x "$binary" ]; then
        why=$(grep -E "$name.*(error|fatal)" $work/build.log 2> /dev/null | head -1 | quoted)
        echo "{\"group\": \"$4\", \"name\": \"$name\", \"failed\": \"was not built: ${why:-see $work/build.log}\"}"
        return
    fi
    CUDA_LAUNCH_BLOCKING=$(case " $LOOKS " in *" $name "*) echo 1 ;; *) echo 0 ;; esac) \
        timeout -k 5 "$5" $2 "$binary" > "$log" 2>&1 < /dev/null || status=$?
    counts=$(sed -nE 's/.*test cases: *([0-9]+) \| *([0-9]+) passed \| *([0-9]+) failed.*/"cases": \1, "right": \2, "wrong": \3/p' "$log" | tail -1)
    case $status in
    0) why=$(sed -nE 's/.*ERROR SUMMARY: ([1-9][0-9]*) error.*/\1 errors of the sanitizer/p;s/.*RACECHECK SUMMARY: ([1-9][0-9]*) hazard.*/\1 hazards/p' "$log" | tail -1) ;;
    124 | 137) why="not done after $5 s" ;;
    *)
        why=$(sed -nE 's/^TEST CASE: +//p' "$log" | awk '!seen[$0]++' | head -1 | quoted)
        [ -n "$counts" ] && why="wrong, first: $why" || why="ended with status $status in: $why"
        if grep -q 'Error:.*CUDA:\|CUDA: ' "$log"; then why+="; $(grep -o 'CUDA: [^;(]*' "$log" | head -1 | quoted)"; fi ;;
    esac
    echo "{\"group\": \"$4\", \"name\": \"$name\"${counts:+, $counts}, \"seconds\": $((SECONDS - began))${why:+, \"failed\": \"$why\"}}"
}
# $1: stage, $2: seconds, $3: in front of each binary, then suites
suites() {
    local stage=$1 seconds=$2 before=$3 name failed
    shift 3
    : > "$work/$stage"
    for name in "$@"; do
        while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do wait -n; done
        [ "$(left 1000)" -gt 2 ] || { echo "{\"group\": \"$stage\", \"name\": \"$name\", \"failed\": \"no time left\"}" >> "$work/$stage"; continue; }
        suite "$name" "$before" "-$stage" "$stage" "$(left "$seconds")" >> "$work/$stage" &
    done
    wait
    cat "$work/$stage" >> $rows
    failed=$(grep '"failed"' "$work/$stage" | field name | tr '\n' ' ')
    says="$(grep -vc '"failed"' "$work/$stage") of $# suites, $(field right < "$work/$stage" | awk '{ n += $1 } END { print n + 0 }') cases"
    [ -z "$failed" ] || { says+="; failed: $failed"; return 1; }
}
sanitizer() {   # stage, tool
    local tool
    tool=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2> /dev/null) || { says='there is no compute-sanitizer'; return 2; }
    suites "$1" 55 "$tool --tool $2 --error-exitcode 9 --print-limit 3" norm rope embed reduce loss quantize attention
}

# ---- the benchmark --------------------------------------------------------------------------------------------------
bench() {   # group, seconds
    local log=$work/bench-$1 status=0
    [ -x "$bench_program" ] || { says="there is no $bench_program"; return 1; }
    timeout -k 5 "$2" $bench_program $small "$1" > "$log" 2> "$log.err" < /dev/null || status=$?
    if [ "$1" = rate ]; then cat "$log"; else grep -v '"group": "rate"' "$log"; fi >> $rows
    says="$(grep -c '"ms"' "$log") rows"
    [ $status -ne 124 ] || says+=", not done after $2 s"
    ! grep -q '"skipped"' "$log" || says+="; $(field skipped < "$log" | head -1)"
    ! grep -q '"failed"' "$log" || { says+="; failed: $(field name < <(grep '"failed"' "$log") | head -3 | tr '\n' ',') $(field failed < "$log" | head -1)"; return 1; }
    [ $status -eq 0 ] || { says+="; $(tail -1 "$log.err" | quoted)"; return 1; }
}

# ---- whole steps ----------------------------------------------------------------------------------------------------
# $1: name, $2: seconds, then flags. The largest micro-batch that fits; killed before it would save what nobody wants.
step() {
    local name=$1 seconds=$2 out=$work/run-${1// /-} batch plan need flops pid speed mfu lines=0 until
    shift 2
    rm -rf "$out"
    for batch in $batches; do
        plan=$($gpu_program plan --json "$@" --batch "$batch" --seq "$seq" --tokens-per-step $((batch * seq)) 2>&1) || { echo "$plan" | tail -1; return 1; }
        need=$(field memory.all <<< "$plan")
        [ "${need:-0}" -le "$free" ] && break
    done
    [ "${need:-0}" -le "$free" ] || { echo "needs $((need / 1000000)) MB, $((free / 1000000)) MB are free"; return 1; }
    flops=$(field 'flops\.(matmul|attention)' <<< "$plan" | awk -v n=$((batch * seq)) '{ s += $1 } END { print s / n }')
    $gpu_program train "$@" --batch "$batch" --seq "$seq" --tokens-per-step "$tokens" --steps 1000000 --warmup 10 --lr 1e-4 --out "$out" \
        --save-every 0 --eval-every 0 --sample-every 0 --log-every 1 > "$out.log" 2>&1 < /dev/null &
    pid=$! until=$((SECONDS + seconds))
    while kill -0 $pid 2> /dev/null && [ "$lines" -lt "$enough" ] && [ $SECONDS -lt $until ]; do
        sleep 0.2
        lines=$(cat "$out/log.jsonl" 2> /dev/null | wc -l)
    done
    kill -KILL $pid 2> /dev/null; wait $pid 2> /dev/null
    [ "$lines" -ge 2 ] || { echo "$lines steps, $((SECONDS - until + seconds)) s: $(tail -1 "$out.log" | quoted)"; return 1; }
    sed -i '$!b;/}$/!d' "$out/log.jsonl"               # a line that was cut off
    speed=$(tail -n +2 "$out/log.jsonl" | field tokens_per_s | median)
    mfu=$(tail -n +2 "$out/log.jsonl" | field mfu | median)
    row "$(awk -v name="$name" -v s="$speed" -v f="$flops" -v rate="$(grep '"group": "rate", "name": "product",' $rows | field tflop_s)" -v peak="$peak" \
        -v shape="$batch x $seq, $tokens tokens" -v mfu="$mfu" -v n="$lines" -v note="$note" -v loss="$(tail -1 "$out/log.jsonl" | field loss)" 'BEGIN {
            t = s * f / 1e12
            printf "\"group\": \"step\", \"name\": \"%s\", \"shape\": \"%s\", \"tokens_s\": %.0f, \"tflop_s\": %.4g", name, shape, s, t
            if (rate > 0) printf ", \"share\": %.3f", t / rate
            if (peak > 0) printf ", \"peak_share\": %.3f", t / peak
            printf ", \"mfu\": %s, \"loss\": %s, \"steps\": %d, \"note\": \"%s\"", (mfu == "" ? "null" : mfu), loss, n, note }')"
    rm -rf "$out"
}
steps() {   # seconds
    local end=$((SECONDS + $1)) moments='--moments bf16' note='' bad='' done=0 name model type flags why share
    if ! $gpu_program plan --model gpt2-124m --tokenizer none --dtype bf16 --moments bf16 > /dev/null 2>&1; then
        moments='' note='moments in fp32: --moments bf16 is not built'
    fi
    for vocab in $vocabs; do
        [ -s $work/ids-$vocab.bin ] || $bench_program --shard $work/ids-$vocab.bin $vocab $ids 2> /dev/null || { says="no data: ids-$vocab.bin"; return 1; }
    done
    while read -r model type share; do
        [ -n "$model" ] || continue
        case $type in bf16) flags="--dtype bf16 --master none $moments" ;; fp8) flags="--dtype bf16 --fp8 tensorwise --master none $moments" ;; *) flags="--dtype fp32" ;; esac
        case $model in gpt2*) vocab=50257 ;; *) vocab=151936 ;; esac
        local shape="--model $model"
        [ -z "$small" ] || shape="--family gpt2 --layers 2 --dim 32 --heads 2 --vocab 64" vocab=64
        local seconds=$(((end - SECONDS) * share / 100))
        if [ $seconds -lt 3 ]; then why='no time left'; else
            why=$(step "$model $type" $seconds $shape --tokenizer none --data $work/ids-$vocab.bin $flags) && { done=$((done + 1)); continue; }
        fi
        bad+="; $model $type: $why"
        row "\"group\": \"step\", \"name\": \"$model $type\", \"failed\": \"$(quoted <<< "$why")\""
    done <<< "$models"
    says="$done runs${note:+; $note}${skipped_types:+; $skipped_types}$bad"
    [ -z "$bad" ]
}

# ---- small runs: this program against the one of the CPU -------------------------------------------------------------
cases() {   # name, how far loss and norm may be apart, flags
    cat <<END
fp32 1e-4
zero1 1e-4 --ranks 4 --shard zero1
bf16 2e-2 --dtype bf16
fp64 1e-9 --dtype fp64
gpt2 1e-4 --family gpt2 --recompute full
qwen3 1e-4 --family qwen3 --kv-heads 2 --recompute selective --stats 2 --trace 1
fp8 5e-2 --dtype bf16 --fp8 tensorwise
fp8-rowwise 5e-2 --dtype bf16 --fp8 rowwise --master none
zero2 1e-4 --ranks 4 --shard zero2 --replicate 2
fsdp 1e-4 --ranks 4 --shard fsdp --gather-dtype bf16 --dtype fp32
tp-sp 1e-4 --ranks 4 --tp 2 --sp --check-collectives
END
}
program() {   # seconds
    local end=$((SECONDS + $1)) name tolerance flags bad='' done=0 what here there worst
    while read -r name tolerance flags; do
        [ -n "$name" ] || continue
        [ $SECONDS -lt $end ] || { bad+="; $name: no time left"; continue; }
        for what in gpu cpu; do
            rm -rf "$work/small-$what"
            timeout -k 5 40 $([ $what = gpu ] && echo $gpu_program || echo $PROGRAM) train --data lessons/coriolanus.txt --val 0 --layers 2 --dim 64 --heads 4 --seq 64 \
                --batch 4 --steps 4 --tokens-per-step 1024 --eval-every 0 --sample-every 0 --save-every 0 --log-every 100 $flags --out "$work/small-$what" \
                > "$work/small-$what.log" 2>&1 < /dev/null || { bad+="; $name ($what): $(tail -1 "$work/small-$what.log" | quoted)"; continue 2; }
        done
        here=$(cat $work/small-gpu/log.jsonl) there=$(cat $work/small-cpu/log.jsonl)
        worst=$(paste <(field loss <<< "$here"; field grad_norm <<< "$here") <(field loss <<< "$there"; field grad_norm <<< "$there") |
            awk '{ d = ($1 - $2) / $2; d = d < 0 ? -d : d; if (!(d <= w)) w = d } END { print w + 0 }')
        row "\"group\": \"program\", \"name\": \"$name\", \"worst\": $worst, \"allowed\": $tolerance"
        if awk -v w="$worst" -v t="$tolerance" 'BEGIN { exit !(w <= t) }' && [ "$(wc -l <<< "$here")" -eq 4 ]; then done=$((done + 1)); else bad+="; $name: $worst, allowed $tolerance"; fi
    done < <([ -n "$small" ] && cases | head -2 || cases)
    local from
    from=$(ls -d $work/small-gpu/step-* 2> /dev/null | tail -1)
    if [ -z "$from" ] || ! timeout 60 $gpu_program train --resume "$work/small-gpu" --steps 6 > $work/resume.log 2>&1 < /dev/null; then bad+="; resume: $(tail -1 $work/resume.log 2> /dev/null | quoted)"; fi
    [ -n "$small" ] || timeout 60 $gpu_program gradcheck > $work/gradcheck.log 2>&1 < /dev/null || bad+="; gradcheck: $(tail -1 $work/gradcheck.log | quoted)"
    says="$done runs have loss and norm of the CPU's$bad"
    [ -z "$bad" ]
}

# ---- stages ---------------------------------------------------------------------------------------------------------
build() {   # seconds
    local status=0 end=$((SECONDS + $1)) what
    for what in 'all cuda build/cuda/gpu_check' cuda-tests; do   # the program first: few cores may not get further
        timeout -k 5 $((end - SECONDS)) $MAKE --no-print-directory -k -j"$(nproc)" CUDA_ARCHS="$arch" $what >> $work/build.log 2>&1 || status=$?
    done
    says="sm_$arch, $(ls build/cuda/test_* 2> /dev/null | wc -l) suites"
    [ $status -ne 124 ] || says+=", not done after $1 s"
    [ $status -eq 0 ] || { says+="; $(grep -E 'error|fatal' $work/build.log | head -1 | quoted)"; return 1; }
}
run() {   # stage, seconds
    case $1 in
    build) build "$2" ;;
    kernels) suites kernels "$2" '' $KERNEL_SUITES ;;
    models) suites models "$2" '' $MODEL_SUITES ;;
    layouts) suites layouts "$2" '' $LAYOUT_SUITES ;;
    rates) bench rate "$2" ;;
    memory | product | attention) bench "$1" "$2" ;;
    steps) steps "$2" ;;
    program) program "$2" ;;
    memcheck | racecheck) sanitizer "$1" "$1" ;;
    esac
}
stage() {   # name, most seconds
    local seconds state=passed from=$SECONDS
    says=''
    seconds=$(left "$2")
    if [ -n "$small" ] && case $1 in build | kernels | models | layouts | memcheck | racecheck) true ;; *) false ;; esac; then
        state=skipped says='this is the CPU build'
    elif [ "$seconds" -lt 5 ]; then state=skipped says="$minutes minutes are over"
    else
        run "$1" "$seconds"
        case $? in 0) ;; 2) state=skipped ;; *) state=failed ;; esac
    fi
    says=$(quoted <<< "$says")
    printf '%-10s %-8s %4d s  %s\n' "$1" $state $((SECONDS - from)) "$says"
    echo "{\"name\": \"$1\", \"state\": \"$state\", \"seconds\": $((SECONDS - from)), \"says\": \"$says\"}" >> $stages
}

# Of what was wished for: what was found, of the rows. peak: of the card's data sheet, or else the product measured here.
targets() {
    local against=$peak of="dense BF16 peak of the data sheet, $peak TFLOP/s"
    [ "$peak" != 0 ] || { against=$(grep '"group": "rate", "name": "product",' $rows | field tflop_s); of="product measured here, ${against:-none}"; }
    of_peak() { grep "$1" $rows | field tflop_s | awk -v p="${against:-0}" '{ if (p > 0) printf "%.3f", $1 / p }'; }
    target() { awk -v n="$1" -v w="$2" -v f="$3" -v of="$4" 'BEGIN { printf "{\"name\": \"%s\", \"wanted\": %s, \"found\": %s, \"of\": \"%s\", \"met\": %s}\n", n, w, (f == "" ? "null" : f), of, (f == "" ? "null" : f + 0 >= w + 0 ? "true" : "false") }'; }
    target 'step of 1.5B in bf16' 0.60 "$(of_peak '"name": "qwen2.5-1.5b bf16"')" "$of"
    target 'step of 1.5B, FP8 over bf16' 1.25 "$(paste <(grep '"name": "qwen2.5-1.5b fp8"' $rows | field tokens_s) <(grep '"name": "qwen2.5-1.5b bf16"' $rows | field tokens_s) |
        awk '$1 > 0 && $2 > 0 { printf "%.3f", $1 / $2 }')" 'tokens a second'
    target 'attention forward, T 4096, D 128' 0.35 "$(of_peak 'attention forward.*T 4096, D 128')" "$of"
    target 'attention backward, T 4096, D 128' 0.25 "$(of_peak 'attention backward.*T 4096, D 128')" "$of"
    target 'slowest kernel that moves memory' 0.85 "$(grep '"group": "memory"' $rows | field share | sort -g | head -1)" \
        "copy, $(grep '"group": "rate", "name": "copy"' $rows | field gb_s) GB/s$(grep '"group": "memory"' $rows | awk -F'"share": ' 'NF > 1 && (least == "" || $2 + 0 < least) { least = $2 + 0; row = $0 } END { print row }' | sed -nE 's/.*"name": "([^"]*)".*/: \1/p')"
}
json() {
    commas() { sed '$!s/$/,/' "$@"; }
    cat <<END
{
"schema": 1, "note": "$1",
"card": "$card", "driver": "$driver", "compute": "$compute", "memory_mb": ${total:-0}, "clocks": "$clocks", "power": "$power",
"cuda": "$cuda", "date": "$(date -u +%Y-%m-%d)", "commit": "$(git describe --always --dirty --abbrev=12 2> /dev/null || echo unknown)", "seconds": $((SECONDS - began)),
"stages": [
$(commas $stages)
],
"targets": [
$(targets | commas)
],
"rows": [
$(commas $rows)
]
}
END
}

# TFLOP/s of dense BF16 products with sums in float, as the data sheet of the card says; 0: not known here.
peak_of() {
    case $1 in
    *H100*PCIe*) echo 756 ;; *H100*NVL* | *H200*NVL*) echo 835 ;; *H100* | *H200* | *GH200*) echo 989 ;; *B200*) echo 2250 ;; *A100*) echo 312 ;;
    *L40S*) echo 362 ;; *L4) echo 121 ;; *A10G*) echo 0 ;; *A10) echo 125 ;; *A40) echo 150 ;; *4090*) echo 165 ;; *3090) echo 71 ;; *5090*) echo 210 ;; *) echo 0 ;;
    esac
}

minutes=9 wanted='' cpu='' to='' dry='' small='' began=0
while [ $# -gt 0 ]; do
    case $1 in
    --list) list | while read -r name seconds what; do printf '%-10s %4d s  %s\n' "$name" "$seconds" "$what"; done; exit ;;
    --dry) dry=yes ;;
    --cpu) cpu=yes ;;
    --to) to=${2:?--to needs a file}; shift ;;
    --minutes) [[ ${2:-} =~ ^[0-9]+$ ]] || { echo "--minutes ${2:-}: expected a whole number" >&2; exit 2; }; minutes=$2; shift ;;
    *) list | grep -q "^$1 " || { echo "no stage is called $1: $(list | cut -d' ' -f1 | tr '\n' ' ')" >&2; exit 2; }; wanted+=" $1 " ;;
    esac
    shift
done
query() { nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits 2> /dev/null | head -1; }
card=$(query name) compute=$(query compute_cap)
if [ -n "$dry" ]; then
    list | while read -r name _; do
        case $name in
        build) echo "build: make -k CUDA_ARCHS=<compute capability> cuda build/cuda/gpu_check cuda-tests" ;;
        kernels | models | layouts) list=$(tr a-z A-Z <<< "${name%s}")_SUITES; for s in ${!list}; do echo "$name: build/cuda/test_$s$(case " $LOOKS " in *" $s "*) echo ', managed memory' ;; esac)"; done ;;
        rates) echo "rates: build/cuda/gpu_check rate" ;;
        memory | product | attention) echo "$name: build/cuda/gpu_check $name" ;;
        *) echo "$name: $(list | sed -n "s/^$name [0-9]* //p")" ;;
        esac
    done
    exit
fi
if [ -z "$card$cpu" ]; then
    echo "no NVIDIA GPU found by nvidia-smi, so nothing is checked. Without one: make cuda cuda-tests (does it build?), dev/gpu_check/check.sh --dry, make test SUITE=gpu (the benchmark in small, on the CPU)"
    exit 1
fi

work=build/gpu_check
[ -z "$to" ] || work=$to.work
rows=$work/rows stages=$work/stages
rm -rf $work && mkdir -p $work && : > $rows && : > $stages
driver=$(query driver_version) power=$(query power.limit) total=$(query memory.total) peak=$(peak_of "$card") skipped_types=''
clocks="$(query clocks.max.sm) MHz, memory $(query clocks.max.mem) MHz" cuda=$([ -z "${NVCC:-}" ] || "$NVCC" --version | sed -nE 's/.*release ([0-9.]+).*/\1/p')
gpu_program=./train_gpt_cuda bench_program=build/cuda/gpu_check arch=${compute/./} free=$(query memory.free)
free=$((${free:-0} * 1048576 / 100 * 92))                # the rest: for the library and what is fragmented
batches='32 16 8 4 2 1' seq=1024 tokens=524288 enough=6 vocabs='50257 151936' ids=4000000
case $arch in 90 | 100 | 103 | 120) arch+=a ;; esac
models='gpt2-124m bf16 15
qwen2.5-0.5b bf16 25
qwen2.5-0.5b fp8 33
qwen2.5-1.5b bf16 55
qwen2.5-1.5b fp8 100'
[ "${compute%.*}" -ge 8 ] 2> /dev/null || { models='gpt2-124m fp32 100' tokens=16384 skipped_types="bf16 and FP8 are skipped: no tensor cores for bf16 before compute capability 8.0, this is $compute"; }
if [ -n "$cpu" ]; then
    card=CPU driver=none compute=0.0 total=0 clocks='' power='' cuda='' peak=0 free=$((1 << 34)) small=--self-test skipped_types=''
    gpu_program=$PROGRAM bench_program=$BENCH batches='8 4' seq=16 tokens=128 enough=3 vocabs=64 ids=4000
    models='gpt2-124m bf16 30
qwen2.5-1.5b bf16 60
qwen2.5-1.5b fp8 100'
fi
began=$SECONDS
while read -r name seconds _ <&3; do
    [ -n "$wanted" ] && [[ $wanted != *" $name "* ]] || stage "$name" $((seconds * minutes / 9))
done 3< <(list)
[ -z "$wanted" ] || to=${to:-$work/some.json}           # only of all stages is a result
file=${to:-gpu/$(tr -cs 'A-Za-z0-9.\n' - <<< "$card-$driver" | tr A-Z a-z | sed 's/^nvidia-//').json}
json "$([ -z "$cpu" ] || echo 'cpu, not a result')" > "$file"
echo "$file: $(grep -c '"state": "passed"' $stages) stages passed, $(grep -c '"state": "failed"' $stages) failed, $(grep -c '"state": "skipped"' $stages) skipped, in $((SECONDS - began)) s"
! grep -q '"state": "failed"' $stages || exit 1
