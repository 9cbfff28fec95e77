#!/bin/bash
# run.sh [LLMC_DIR [NANOGPT_DIR]] - training steps of llm.c's CPU trainer and of nanoGPT on PyTorch beside ours: same
# shapes, one run, medians. PYTHON: an interpreter with torch (python3). STEPS: timed steps of each (5); SHAPES: those of
# `make bench` to take. A peer that is not there is skipped, in words. Ours runs before and after the others.
#
# llm.c is built as its Makefile builds it (-Ofast -march=native, OpenMP) from a copy with constants changed: T where it
# is not 64, no validation, few steps. Its weights and tokens are random: make_llmc.py. nanoGPT: nanogpt.py. The first run
# compiles PyTorch's graphs, later ones take them from its cache.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) root=$(cd "$(dirname "$0")/../../.." && pwd)
llmc=${1:+$(cd "$1" && pwd)} nanogpt=${2:+$(cd "$2" && pwd)}
python=${PYTHON:-python3} steps=${STEPS:-5}
shapes=${SHAPES:-124M-B4-T64 124M-B4-T256 6x384-B8-T256 4x128-B12-T64}
threads=${OMP_NUM_THREADS:-$(nproc)}
export OMP_NUM_THREADS=$threads
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT

bench=$root/build/g++/bench
if ! make -C "$root" --no-print-directory build/g++/bench > "$work/log" 2>&1; then
    echo "run.sh: $bench could not be built: $(tail -1 "$work/log")" >&2
    exit 1
fi
if [ -z "$llmc" ]; then echo "llm.c: skipped, no directory was given" >&2; fi
if [ -z "$nanogpt" ]; then echo "nanoGPT: skipped, no directory was given" >&2
elif ! "$python" -c 'import torch' 2> /dev/null; then
    echo "nanoGPT: skipped, $python has no torch (PYTHON=...)" >&2
    nanogpt=
fi

# Lines `name<TAB>milliseconds` go to $work/SHAPE.
ours() {
    local type
    for type in fp32 bf16; do
        "$bench" "$1" $type pairs="$steps" seconds=$((steps * 5)) |
            awk -F' *[|] *' -v t=$type '$3 == t && $4 > 0 { print "baretrain " t "\t" $4 }' >> "$work/$1"
    done
}
llmc() {                                               # only the model that its checkpoint holds
    local seq=${1##*-T} batch=${1##*-B} n=$((steps < 3 ? steps : 3))
    [[ -n $llmc && $1 == 124M-* ]] || return 0
    if [ ! -d "$work/llmc" ]; then
        mkdir "$work/llmc" && cp -r "$llmc/Makefile" "$llmc/llmc" "$work/llmc/"
        python3 "$here/make_llmc.py" "$work/llmc"
    fi
    sed -e "s/int B = 4;/int B = ${batch%-T*};/; s/int T = 64;/int T = $seq;/; s/val_num_batches = 5/val_num_batches = 0/" \
        -e "s/step <= 40/step <= $n/" \
        "$llmc/train_gpt2.c" > "$work/llmc/train_gpt2.c"
    rm -f "$work/llmc/train_gpt2"
    if ! make -C "$work/llmc" train_gpt2 > "$work/llmc/log" 2>&1; then
        echo "llm.c: skipped, it did not build: $(tail -1 "$work/llmc/log")" >&2
        return 0
    fi
    (cd "$work/llmc" && ./train_gpt2 2> /dev/null) |
        awk '/^step [1-9].*took/ { sub(/.*took /, ""); print "llm.c fp32\t" $1 }' >> "$work/$1"
}
nanogpt() {
    [ -n "$nanogpt" ] || return 0
    local sizes
    case $1 in
        124M-*) sizes="12 12 768 50304";;
        6x384-*) sizes="6 6 384 65";;
        4x128-*) sizes="4 4 128 65";;
        *) return 0;;
    esac
    local seq=${1##*-T} batch=${1##*-B} n=$steps
    [[ $1 == 124M-* ]] || n=$((steps * 4))
    "$python" "$here/nanogpt.py" "$nanogpt" $sizes "${batch%-T*}" "$seq" $n >> "$work/$1"
}

echo "$(date +%F), $(sed -n 's/^model name\t*: //p' /proc/cpuinfo | head -1), $threads threads"
for shape in $shapes; do
    ours "$shape"; llmc "$shape"; nanogpt "$shape"; ours "$shape"
    seq=${shape##*-T} batch=${shape##*-B}
    printf '\n| %s | step ms | tokens/s | times our fp32 | times our bf16 | steps |\n|---|---|---|---|---|---|\n' "$shape"
    sort -t$'\t' -k1,1 -k2,2n "$work/$shape" | awk -F'\t' -v tokens=$((${batch%-T*} * seq)) '
        { if ($1 != last) names[++count] = $1; last = $1; times[$1, ++n[$1]] = $2 }
        function median(name) { return times[name, int((n[name] + 1) / 2)] }
        END { for (i = 1; i <= count; ++i) { m = median(names[i])
                  printf "| %s | %.1f | %.0f | %.2f | %.2f | %d |\n", names[i], m, 1e3 * tokens / m,
                      m / median("baretrain fp32"), m / median("baretrain bf16"), n[names[i]] } }'
done
