#!/bin/bash
# Breaks one line after the other (test/mutants.txt) in a copy of the tree, and requires the suite of that row to notice.
#   test/mutants.sh               every row                 test/mutants.sh NAME...   only those
#   test/mutants.sh --show NAME   the row, and ./train_gpt built with it in build/mutants/tree
# A row whose line is gone, stands twice, or does not compile fails too: it proves nothing. Called by `make mutants`, `make bug`.
set -uo pipefail
cd "$(dirname "$0")/.."
tree=build/mutants/tree
unset MAKELEVEL MAKEFLAGS MFLAGS

field() { awk -v name="$1" -v key="$2: " '
    /^name: / { inside = substr($0, 7) == name }
    inside && index($0, key) == 1 { print substr($0, length(key) + 1); exit }' test/mutants.txt; }

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

mutant() {       # name; prints one line
    local name=$1 file suite log=build/mutants/$1.log
    file=$(field "$name" file) suite=$(field "$name" suite)
    [ -n "$suite" ] && [ -f "$file" ] || { echo "FAILED   $name: no such row or file"; return 1; }
    break_line "$name" || { echo "FAILED   $name: its line is gone from $file, or stands there twice"; return 1; }
    make -C $tree test SUITE="$suite" > "$log" 2>&1
    local status=$?
    cp "$file" "$tree/$file"
    if [ $status -eq 0 ]; then echo "SURVIVED $name: suite $suite did not notice"; return 1; fi
    grep -qE '^[0-9]+ passed, [0-9]+ failed' "$log" || { echo "FAILED   $name: does not build, see $log"; return 1; }
    echo "killed   $name by $suite"
}

copy_tree
if [ "${1:-}" = --show ]; then
    name=${2:?make bug NAME=...}
    [ -n "$(field "$name" file)" ] || { echo "no mutant is called $name; they stand in test/mutants.txt" >&2; exit 2; }
    break_line "$name" || { echo "$name: its line is gone from $(field "$name" file)" >&2; exit 1; }
    printf '%s\n  -  %s\n  +  %s\n%s\n' "$(field "$name" file)" "$(field "$name" line)" "$(field "$name" with)" "$(field "$name" sees)"
    make -C $tree > build/mutants/bug.log 2>&1 || { tail -20 build/mutants/bug.log; exit 1; }
    cp "$(field "$name" file)" "$tree/$(field "$name" file)"
    echo "built $tree/train_gpt"
    exit
fi
passed=0 failed=0
for name in ${*:-$(sed -n 's/^name: //p' test/mutants.txt)}; do
    if mutant "$name"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
