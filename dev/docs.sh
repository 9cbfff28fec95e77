#!/bin/bash
# The outputs and pictures of README.md and lessons/*.md: runs each block that begins ```sh run, and writes what it prints
# into the ```text block behind it. Commands run in build/docs, where the program, a copy of lessons/ and the headers that
# they quote lie; pictures are files they write there.
#   dev/docs.sh            pages and pictures anew             dev/docs.sh --check    is what is there still true?
#   dev/docs.sh --same A B    do two files say the same? Words and whole numbers to the letter, other numbers to four digits.
# Called by `make docs`, `make docs-check` and .ci/run.
set -uo pipefail
cd "$(dirname "$0")/.."
work=build/docs
export OMP_NUM_THREADS=1

# Prints the first line that differs, with its number.
same() {
    awk '
    function token() {                                 # takes a number, or what lies before the next, from the line
        if (!match(rest, /[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?/)) { piece = rest; rest = ""; return }
        if (RSTART > 1) RLENGTH = RSTART - 1
        piece = substr(rest, 1, RLENGTH); rest = substr(rest, RLENGTH + 1)
    }
    function near(a, b,   x, y) {
        if (a == b) return 1
        if (a !~ /^[0-9.e+-]*[0-9]$/ || b !~ /^[0-9.e+-]*[0-9]$/ || a !~ /[.e]/ || b !~ /[.e]/) return 0
        x = a + 0; y = b + 0
        return (x > y ? x - y : y - x) <= 1e-4 * (x > y ? x : y)
    }
    NR == FNR { old[FNR] = $0; lines = FNR; next }
    {
        n = FNR; left = old[FNR]; right = $0
        while (!differs && (left != "" || right != "")) {
            rest = left; token(); a = piece; left = rest
            rest = right; token(); b = piece; right = rest
            if (!near(a, b)) differs = 1
        }
        if (differs) { printf "%d: there: %s; now: %s\n", FNR, substr(old[FNR], 1, 200), substr($0, 1, 200); exit 1 }
    }
    END { if (differs) exit 1; if (n != lines) { printf "%d lines, now %d\n", lines, n; exit 1 } }' "$1" "$2"
}

# The page with the outputs of its commands.
page() {   # in, out
    awk -v block="$work/block.sh" -v output="$work/block.out" '
    function run(   status, line) {
        close(block)
        status = system("cd build/docs && bash -euo pipefail block.sh > block.out 2>&1 < /dev/null")
        printed = 0
        while ((getline line < output) > 0) { text[++printed] = line }
        close(output)
        if (status) { print FILENAME ":" FNR ": the command ends with status " status ": " text[printed] > "/dev/stderr"; failed = 1; exit }
    }
    commands && /^```$/ { commands = 0; print; run(); expected = 1; next }
    commands { print > block; print; next }
    /^```sh run$/ { printf "" > block; commands = 1; print; next }
    expected && /^```text$/ {
        print
        for (i = 1; i <= printed; ++i) print text[i]
        skipping = 1; expected = 0; next
    }
    skipping && /^```$/ { skipping = 0 }
    skipping { next }
    expected && NF { if (printed) { print FILENAME ":" FNR ": no ```text block for the output" > "/dev/stderr"; failed = 1; exit }; expected = 0 }
    { print }
    END { exit failed }' "$1" > "$2"
}

[ "${1:-}" != --same ] || { same "$2" "$3"; exit; }
[ -x "${PROGRAM:=./train_gpt}" ] || { echo "$PROGRAM is not built" >&2; exit 1; }
rm -rf $work && mkdir -p $work && cp -Rp lessons $work/ && rm -f $work/lessons/*.svg && ln -s "$PWD/$PROGRAM" $work/train_gpt && ln -s "$PWD"/{gpt,tp}.h "$PWD/gpu" $work/
passed=0 failed=0
for f in README.md lessons/*.md; do
    page "$f" $work/"$f" || { echo "FAILED  $f: see above"; failed=$((failed + 1)); rm -f $work/"$f"; }
done
for there in $(cd $work; ls README.md lessons/*.md lessons/*.svg 2> /dev/null); do
    f=$work/$there
    if [ "${1:-}" != --check ]; then cmp -s "$f" "$there" || { cp "$f" "$there"; echo "new     $there"; }; continue; fi
    if what=$(same "$there" "$f" 2>&1); then passed=$((passed + 1))
    else echo "STALE   $there:$what; make docs"; failed=$((failed + 1)); fi
done
[ "${1:-}" = --check ] || exit $((failed > 0))
echo "$passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
