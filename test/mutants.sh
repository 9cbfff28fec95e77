#!/bin/bash
# Breaks one line after the other (test/mutants.txt) in a copy of the tree, and requires the suite of that row to notice.
#   test/mutants.sh               every row                 test/mutants.sh NAME...   only those
#   test/mutants.sh --group k/K   the k-th of K parts of them: each suite's rows together, and the suite unbroken first
#   test/mutants.sh --show NAME [FLAG...]   the row; then trains with and without it, and shows both losses side by side
# A row whose line is gone, stands twice, or does not compile fails too: it proves nothing. Called by `make mutants`, `make bug`.
# Two rows at a time, a core each, at -O1; a suite stops at its first failure, and fibers run only if the CPU saw nothing.
set -uo pipefail
cd "$(dirname "$0")/.."
tree=build/mutants/tree list=test/mutants.txt
unset MAKELEVEL MAKEFLAGS MFLAGS
export OMP_NUM_THREADS=1
fibers=" $(sed -nE 's/^SIMT_(SUITES|ONLY) *:= //p' Makefile | tr '\n' ' ') "
only_fibers=" $(sed -nE 's/^SIMT_ONLY *:= //p' Makefile) "

field() { awk -v name="$1" -v key="$2: " '
    /^name: / { inside = substr($0, 7) == name }
    inside && index($0, key) == 1 { print substr($0, length(key) + 1); exit }' $list; }

# The tree as git sees it, changed files included; what is built there stays, so that the next row builds little.
copy_tree() {
    mkdir -p $tree
    git ls-files -co --exclude-standard | while read -r f; do
        [ -e "$f" ] && ! cmp -s "$f" "$tree/$f" && { mkdir -p "$tree/$(dirname "$f")"; cp "$f" "$tree/$f"; }
    done
    return 0
}

# Replaces the one line that reads like `line` but for its indentation. Fails where it is not there exactly once.
break_line() {   # name
    LINE=$(field "$1" line) WITH=$(field "$1" with) awk '
        { text = $0; sub(/^[ \t]+/, "", text); sub(/[ \t]+$/, "", text) }
        text == ENVIRON["LINE"] { match($0, /^[ \t]*/); print substr($0, 1, RLENGTH) ENVIRON["WITH"]; ++found; next }
        { print }
        END { exit found != 1 }' "$(field "$1" file)" > $tree/broken || return 1
    mv $tree/broken "$tree/$(field "$1" file)"
}

# Runs a suite in $tree, on the CPU and then thread for thread; fails at the first failure. Objects of a broken tree go.
suite_passes() {   # suite, log
    local on=kernels
    [ ! -e "test/$1_test.cpp" ] || on=host
    case $fibers in *" $1 "*) on+=" simt" ;; esac
    case $only_fibers in *" $1 "*) on=simt ;; esac
    : > "$2"
    for on in $on; do
        make -C $tree -j1 test SUITE="$1" ON="$on" CXXFLAGS=-O1 TEST_ARGS=--abort-after=1 > "$2" 2>&1 || return 1
    done
}

mutant() {       # name; prints one line
    local name=$1 file suite log=build/mutants/$1.log noticed
    file=$(field "$name" file) suite=$(field "$name" suite)
    [ -n "$suite" ] && [ -f "$file" ] || { echo "FAILED   $name: no such row or file"; return 1; }
    touch $tree/before
    break_line "$name" || { echo "FAILED   $name: its line is gone from $file, or stands there twice"; return 1; }
    suite_passes "$suite" "$log" && noticed= || noticed=yes
    cp -p "$file" "$tree/$file"                        # with its old time: only what was built meanwhile must go
    find $tree -type f -newer $tree/before -path '*/build/*' ! -name flags ! -name commit ! -name config.mk -delete
    rm -f $tree/train_gpt
    [ -n "$noticed" ] || { echo "SURVIVED $name: suite $suite did not notice"; return 1; }
    grep -qE '^[0-9]+ passed, [0-9]+ failed' "$log" || { echo "FAILED   $name: does not build, see $log"; return 1; }
    echo "killed   $name by $suite"
}

# One after the other in a tree of its own; a suite that fails unbroken would prove nothing about its rows.
work_through() {   # tree, names
    local name suite checked=
    tree=$1; shift
    [ $# -gt 0 ] || return 0
    copy_tree
    for name in "$@"; do
        suite=$(field "$name" suite)
        if [ -n "$whole" ] && [ "$suite" != "$checked" ] && [ -n "$suite" ]; then
            checked=$suite
            suite_passes "$suite" build/mutants/unbroken-"$suite".log || echo "FAILED   suite $suite fails unbroken"
        fi
        mutant "$name"
    done
}

copy_tree
if [ "${1:-}" = --show ]; then
    name=${2:?make bug NAME=...}
    shift 2
    [ -n "$(field "$name" file)" ] || { echo "no mutant is called $name; they stand in test/mutants.txt" >&2; exit 2; }
    break_line "$name" || { echo "$name: its line is gone from $(field "$name" file)" >&2; exit 1; }
    printf '%s\n  -  %s\n  +  %s\n%s\n' "$(field "$name" file)" "$(field "$name" line)" "$(field "$name" with)" "$(field "$name" sees)"
    make -C $tree > build/mutants/bug.log 2>&1 || { tail -20 build/mutants/bug.log; exit 1; }
    cp "$(field "$name" file)" "$tree/$(field "$name" file)"
    make -s all > /dev/null || exit 1
    case " $* " in *" --steps"*) ;; *) set -- --steps 200 "$@" ;; esac
    for run in right bug; do
        program=./train_gpt
        [ $run = right ] || program=$tree/train_gpt
        rm -rf build/mutants/$run
        OMP_NUM_THREADS=$(nproc) $program --sample-every 0 --eval-every 0 "$@" --out build/mutants/$run \
            > build/mutants/$run.log 2>&1 || { echo "$run: $(tail -1 build/mutants/$run.log)"; exit 1; }
        sed -nE 's/.*"loss":([^,}]+).*/\1/p' build/mutants/$run/log.jsonl | cut -c1-8 > build/mutants/$run.loss   # a line a step
    done
    paste build/mutants/right.loss build/mutants/bug.loss | awk '
        BEGIN { printf "%6s  %12s  %12s\n", "step", "right", "with the bug" }
        NR == 1 || NR % 20 == 0 { printf "%6d  %12s  %12s\n", NR, $1, $2 }'
    exit
fi
whole='' names=$*
if [ $# -eq 0 ] || [ "$1" = --group ]; then
    part=${2:-1/1} whole=yes
    names=$(awk '/^name: /{ n = substr($0, 7) } /^suite: /{ print substr($0, 8), n }' $list | sort -s -k1,1 |
        awk -v k="${part%/*}" -v K="${part#*/}" '{ name[NR] = $2 }
            END { for (i = int((k - 1) * NR / K) + 1; i <= int(k * NR / K); ++i) print name[i] }')
fi
mkdir -p build/mutants
half=$(($(wc -w <<< "$names") / 2)) result=build/mutants/result
{ work_through build/mutants/tree2 $(tr ' ' '\n' <<< "$names" | head -n $half) &
  work_through build/mutants/tree $(tr ' ' '\n' <<< "$names" | tail -n +$((half + 1))); wait; } | tee $result
awk '/^killed/ { ++p } /^FAILED|^SURVIVED/ { ++f } END { printf "%d passed, %d failed\n", p, f; exit f > 0 || !p }' $result
