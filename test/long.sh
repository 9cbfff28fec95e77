#!/bin/bash
# What takes longer than `make test`, in named parts; each prints a line `N passed, M failed`, and so does the sum.
#   test/long.sh                          all of them           test/long.sh --list     names and minutes, on two cores
#   test/long.sh NAME...                  only those            test/long.sh k/K        the k-th of K shares of the list
#   test/long.sh --within MINUTES FIRST SLOW   the first two, then from number FIRST on what fits; the rest is named. This
#                                         machine takes SLOW percent of the time that the list says.
# Called by `make test-long PART='...'` and .ci/run.
set -uo pipefail
cd "$(dirname "$0")/.."
unset MAKELEVEL MAKEFLAGS MFLAGS

parts() {
    cat <<END
tsan 5 make tsan
clang 6 make clang
fuzz 8 make fuzz
mutants-1 8 test/mutants.sh --group 1/9
copytest 4 make copytest
archs 4 make archs
kernels 3 make kernel-report-check ARCHS=all
mutants-2 8 test/mutants.sh --group 2/9
tsan-ranks 12 make tsan-ranks
matrix 12 make matrix
kill 6 make kill-test
docs 3 make docs-check
apart 5 make apart
lessons 6 lessons/exercise.sh --check
mutants-3 8 test/mutants.sh --group 3/9
checked 18 make DEBUG=1 test
mutants-4 8 test/mutants.sh --group 4/9
mutants-5 8 test/mutants.sh --group 5/9
mutants-6 8 test/mutants.sh --group 6/9
mutants-7 8 test/mutants.sh --group 7/9
mutants-8 8 test/mutants.sh --group 8/9
mutants-9 8 test/mutants.sh --group 9/9
END
}
count=$(parts | wc -l) passed=0 failed=0 skipped=0 left_out=''

part() {   # its line of the list
    local name minutes command log=build/long-${1%% *}.log began=$SECONDS line
    read -r name minutes command <<< "$1"
    printf '\n==> %s: %s\n' "$name" "$command"
    case $name in clang | fuzz) command -v clang++-19 > /dev/null || { echo "skipped: there is no clang++-19"; return; } ;; esac
    mkdir -p build
    $command > "$log" 2>&1 < /dev/null
    local status=$?
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -1)
    [ $status -eq 0 ] || { grep -E 'ERROR|FAILED|SURVIVED|error:|refused' "$log" | head -20; tail -5 "$log"; }
    set -- ${line//,/}
    [ $status -eq 0 ] || [ "${3:-0}" -gt 0 ] || set -- "${1:-0}" passed 1
    passed=$((passed + ${1:-0})) failed=$((failed + ${3:-0})) skipped=$((skipped + ${5:-0}))
    echo "$name: ${line:-ended with status $status} in $((SECONDS - began)) s"
}

case ${1:-} in
--list) parts; exit ;;
--within)
    for ((i = 0; i < count; ++i)); do
        line=$(parts | sed -n "$((i < 2 ? i + 1 : ($3 + i) % (count - 2) + 3))p")
        read -r name minutes _ <<< "$line"
        if [ $((SECONDS + minutes * 60 * $4 / 100)) -le $(($2 * 60)) ]; then part "$line"; else left_out+=" $name"; fi
    done ;;
[0-9]*/*)
    k=${1%/*} K=${1#*/}
    while read -r line <&3; do part "$line"; done 3< <(parts | awk -v k="$k" -v K="$K" 'NR % K == k % K') ;;
*)
    for name in ${*:-$(parts | cut -d' ' -f1)}; do
        line=$(parts | grep "^$name ") || { echo "no part is called $name: $(parts | cut -d' ' -f1 | tr '\n' ' ')" >&2; exit 2; }
        part "$line"
    done ;;
esac
printf '\nleft out:%s\n' "${left_out:- nothing}"
printf '%d passed, %d failed%s\n' $passed $failed "$([ $skipped -eq 0 ] || echo ", $skipped skipped")"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
