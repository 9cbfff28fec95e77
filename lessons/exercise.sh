#!/bin/bash
# Exercises on the real source (lessons/exercises.txt): lines are gone in a copy of the tree, and you write them again.
#   lessons/exercise.sh                  which there are
#   lessons/exercise.sh NAME [FOLDER]    makes build/exercise/NAME, and says what is to be written where
#   lessons/exercise.sh --grade NAME [FOLDER]   runs the suites of the exercise on that copy: a line a suite
#   lessons/exercise.sh --fits           are the lines of all exercises in the source, once?
#   lessons/exercise.sh --check [NAME...]   of each: without its lines it builds and fails, with the old ones it passes
# Called by `make exercise NAME=...`, `make grade NAME=...` and `make test-long PART=lessons`.
set -uo pipefail
cd "$(dirname "$0")/.."
list=lessons/exercises.txt
unset MAKELEVEL MAKEFLAGS MFLAGS

names() { sed -n 's/^name: //p' $list; }
field() { awk -v name="$1" -v key="$2: " '
    /^name: / { inside = substr($0, 7) == name }
    inside && index($0, key) == 1 { print substr($0, length(key) + 1) }' $list; }
known() { names | grep -qx -- "${1:-}" || { echo "no exercise is called '${1:-}': $(names | tr '\n' ' ')" >&2; exit 2; }; }

# The tree as git sees it, and what is built already, with its times: then little is built again.
copy_tree() {   # folder
    mkdir -p "$1/build"
    git ls-files -co --exclude-standard | while read -r f; do
        [ ! -e "$f" ] || { mkdir -p "$1/$(dirname "$f")"; cp -p "$f" "$1/$f"; }
    done
    [ ! -d build/g++ ] || cp -Rp build/g++ "$1/build/"
}

# The file with `with` for the lines from `first` to `last`, found without their indentation; fails where `first` is not there once.
take_away() {   # name
    FIRST=$(field "$1" first) LAST=$(field "$1" last) WITH=$(field "$1" with) awk '
        { text = $0; sub(/^[ \t]+/, "", text) }
        text == ENVIRON["FIRST"] {
            match($0, /^[ \t]*/); indent = substr($0, 1, RLENGTH)
            n = split(ENVIRON["WITH"], lines, "\n")
            for (i = 1; i <= n; ++i) print indent lines[i]
            gone = 1; ++found
        }
        !gone { print }
        text == ENVIRON["LAST"] { ends += gone; gone = 0 }
        END { exit !(found == 1 && ends == 1 && !gone) }' "$(field "$1" file)"
}

# One line a suite; the first failure is the one to look at.
grade() {       # name, folder
    local suite log failed=0
    for suite in $(field "$1" suite); do
        log=$2/grade-$suite.log
        if make -C "$2" test SUITE="$suite" LIMIT="$(command -v timeout > /dev/null && echo timeout 300)" \
            TEST_ARGS=--abort-after=1 > "$log" 2>&1; then echo "passed          $suite"; continue; fi
        failed=1
        if ! grep -qE '^[0-9]+ passed, [0-9]+ failed' "$log"; then
            echo "does not build  $suite: $(grep -m1 -E 'error|Error' "$log")"
        else
            awk '/^TEST CASE: / { what = substr($0, 13) }
                 /ERROR:/ && !error { error = $0; sub(/^.*ERROR: /, "", error); sub(/ is NOT correct!$/, "", error) }
                 error && /^$/ { done = 1 }
                 !done && error && /:= / { sub(/^.*:= /, ""); sub(/ +$/, ""); detail = detail (detail ? ", " : "") $0 }
                 !done && error && /^  values: / { error = substr($0, 11) }
                 /: status / { error = error $0 }
                 END { printf "failed          %s: %s: %s (%s)\n", "'"$suite"'", what, error, detail }' "$log"
        fi
    done
    return $failed
}

check() {       # names; in a copy of its own
    local name tree=build/exercise/.check passed=0 failed=0
    copy_tree $tree
    for name in "$@"; do
        local file; file=$(field "$name" file)
        if ! take_away "$name" > $tree/"$file"; then
            echo "FAILED  $name: its lines are gone from $file, or stand there twice"; failed=$((failed + 1)); continue
        fi
        local said; said=$(grade "$name" $tree)
        case $said in *failed*) echo "$name without its lines: $said"; passed=$((passed + 1)) ;;
            *) echo "FAILED  $name without its lines: $said"; failed=$((failed + 1)) ;; esac
        cp "$file" $tree/"$file"
        if said=$(grade "$name" $tree); then echo "$name with its lines:    $said"; passed=$((passed + 1))
        else echo "FAILED  $name with its lines: $said"; failed=$((failed + 1)); fi
    done
    rm -rf $tree
    echo "$passed passed, $failed failed"
    [ $failed -eq 0 ] && [ $passed -gt 0 ]
}

case ${1:-} in
'') echo "make exercise NAME=..., one of: $(names | tr '\n' ' ')" ;;
--grade)
    known "${2:-}"
    tree=${3:-build/exercise/$2}
    [ -d "$tree" ] || { echo "make exercise NAME=$2 first" >&2; exit 2; }
    grade "$2" "$tree" ;;
--check) shift; check ${*:-$(names)} ;;
--fits) for name in $(names); do take_away "$name" > /dev/null || { echo "$name does not fit $(field "$name" file)"; exit 1; }; done ;;
*)
    known "$1"
    tree=${2:-build/exercise/$1} file=$(field "$1" file)
    [ ! -e "$tree" ] || { echo "$tree is there: go on in it, or remove it to begin again" >&2; exit 1; }
    copy_tree "$tree" && take_away "$1" > "$tree/$file" || { echo "$list: $1 does not fit $file" >&2; exit 1; }
    mark=$(field "$1" with | grep -m1 'your line')
    echo "$tree/$file:$(grep -nF -- "$mark" "$tree/$file" | cut -d: -f1): write the lines that are gone."
    field "$1" hint
    echo "Without them: $(field "$1" sees)"
    echo "make grade NAME=$1 says whether you are there." ;;
esac
