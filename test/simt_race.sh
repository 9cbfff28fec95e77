#!/bin/sh
# simt_race.sh - a missing barrier is a data race for ThreadSanitizer, both lines named; a kernel with its barriers is clean.
# Needs a compiler with ThreadSanitizer: $CXX, else clang++-19, else g++. Run from the root of the checkout.
set -eu
for compiler in ${CXX:-clang++-19 g++}; do command -v "$compiler" >/dev/null && break; done
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
flags='-std=c++20 -O1 -g -I. -DBT_SIMT -fsanitize=thread -x c++ test/simt_race.cu'
fail() { echo "simt_race: $compiler: $1"; cat "$folder/report"; exit 1; }

# clang's runtime needs the program that finds lines; it does not look for the one with a number in its name.
symbolizer=$(command -v llvm-symbolizer-19 || command -v llvm-symbolizer || true)
case $compiler in *clang*)
    [ -z "$symbolizer" ] || export TSAN_OPTIONS="external_symbolizer_path=$(readlink -f "$symbolizer")" ;;
*) symbolizer="the compiler's own" ;;
esac

"$compiler" $flags -o "$folder/clean"
"$compiler" $flags -DBT_RACE -o "$folder/race"

"$folder/clean" >"$folder/report" 2>&1 || fail 'a correct kernel is called a race'
if "$folder/race" >"$folder/report" 2>&1; then fail 'the missing barrier was not seen'; fi
if [ -z "$symbolizer" ]; then
    echo "simt_race: $compiler: the missing barrier is reported; its lines: skipped, there is no llvm-symbolizer"
    exit
fi
for place in 'this line writes' 'this line reads'; do
    line=$(grep -n "$place" test/simt_race.cu | cut -d: -f1)
    grep -q "simt_race.cu:$line" "$folder/report" || fail "the report does not name line $line"
done
echo "simt_race: $compiler: the missing barrier is reported with both lines, the correct kernel is clean"
