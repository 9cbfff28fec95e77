#!/bin/bash
# Copies each header with what its line 2 says, and nothing else, into an empty folder beside a user's program that has
# names like ours of its own, and two files that both include it: g++, clang and nvcc compile, link and run that without
# a warning.
#   test/copytest.sh              every header             test/copytest.sh HEADER...   only those
# Called by `make copytest`. nvcc gets what a kernel may include, and the model; a compiler that is not here is skipped.
set -uo pipefail
cd "$(dirname "$0")/.."
root=$PWD work=$PWD/build/copytest
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)} clang=${CLANG:-clang++-19} cores=$(nproc 2> /dev/null || echo 2)
warnings="-std=c++20 -O0 -Wall -Wextra -Werror"

# The files that line 2 of $1 names: those, or a folder's headers. A remark in brackets is none of them.
named() {
    sed -n '2s|^// Copy with: ||p' "$1" | sed 's/([^)]*)//g' | grep -oE '[A-Za-z0-9_./]+' | while read -r word; do
        case $word in
        */) find "$word" -name '*.h' ;;
        *.h | *.cpp) echo "$word" ;;
        esac
    done
}
# All that is to be copied with $1: "and what it names" means their second lines too, and a part comes with its front.
closure() {
    local all=$1 next=$1 front=${1%%/*}.h
    if sed -n 2p "$1" | grep -qE 'what (it|they) names?' || named "$1" | grep -qx "$front"; then
        while [ -n "$next" ]; do
            next=$(for f in $next; do case $f in *.h) named "$f" ;; esac; done | sort -u | grep -vxF "$all")
            [ -z "$next" ] || all="$all"$'\n'"$next"
        done
        echo "$all"
    else
        { echo "$1"; named "$1"; } | sort -u
    fi
}

# The guest: what we call our things too, in its own global namespace; declared before the header, or behind it.
guest() {
    cat <<'END'
struct View { int rows; };
struct Error { int code; };
struct Device { View view; };
template <class T> struct Tensor { T value; };
struct Buffer; struct Arena; struct Params; struct Config; struct Tokenizer; struct Corpus; struct Linear; struct Norm;
struct Lease; struct Digest; struct Matmul; struct Shape; struct Grid; struct Where; struct Context; struct Trainer;
enum Stream { train, eval, test };
inline int check(int x) { return x; }
inline int launch(View v) { return v.rows; }
inline int fail(const char* why) { return why[0]; }
inline bool require(bool ok) { return ok; }
inline int save(int x) { return x; }
inline int resume(int x) { return x; }
inline int format(int x) { return x; }
inline int softmax(int x) { return x; }
inline int uniform() { return 4; }
inline int rope(Device d) { return d.view.rows; }
inline int block_sum(int x) { return x; }
END
}
user_project() {   # header: main.X sees its own names first and all of std, other.X the header first, twice each
    guest > guest.h
    cat > main.x <<END
#include <string>
#include <vector>
#include <map>
#include <cmath>
using namespace std;
#include "guest.h"
#include "$1"
#include "$1"
int other();
int main() { return check(launch(View{3})) + rope({{3}}) + fail("a") - 'a' - uniform() - other(); }
END
    cat > other.x <<END
#include "$1"
#include "$1"
#include <fstream>
#include <algorithm>
#include "guest.h"
#include <thread>
int other();
int other() { return save(1) + resume(require(true)) + (Tensor<int>{0}).value + int(test) - 2 - int(eval) + 1; }
END
}

# One header and one compiler; its messages are the output. Bodies are host code: nvcc links those of g++.
build_and_run() {   # folder, compiler
    local objects='' name file
    cd "$work/$1" || return 1
    for file in $(find . -name '*.cpp' | sort); do
        name=${file#./}
        objects+=" $work/bodies/${2/nvcc/g++}/${name%.cpp}.o"
    done
    case $2 in
    nvcc) "$nvcc" -std=c++20 -O0 -arch=sm_90 -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror -I. -x cu main.x other.x \
              -o nvcc.out $([ ! -e kernels/matmul/cublaslt.h ] || echo -lcublasLt -lcublas) -Xlinker "${objects// /,}" ;;
    *) $2 $warnings $objects -I. -x c++ main.x other.x -o "$2.out" -pthread ;;
    esac && "./$2.out"
}
for_nvcc() { case $1 in device.h | memory.h | kernels/*.h | linear.h | gpt.h) [ -x "$nvcc" ] ;; *) false ;; esac; }

case ${1:-} in
--body)             # x.cpp, compiler: in the folder of its header, where only what line 2 says lies
    cd "$work/$(tr / + <<< "${2%.cpp}.h")" && mkdir -p "$(dirname "$work/bodies/$3/$2")" &&
        $3 $warnings $([ "$3" != g++ ] || echo -Wno-restrict) -I. -c "$2" -o "$work/bodies/$3/${2%.cpp}.o"
    exit ;;
--header)           # one header, the compilers
    folder=$(tr / + <<< "$2") good=
    for compiler in $3 $(! for_nvcc "$2" || echo nvcc); do
        if build_and_run "$folder" "$compiler" > "$work/$folder.log" 2>&1; then good+=" $compiler"
        else
            printf 'FAILED   %s with %s, copied with: %s\n%s\n' "$2" "$compiler" \
                "$(cd "$work/$folder" && find . -name '*.h' -o -name '*.cpp' | sed 's|^./||' | sort | tr '\n' ' ')" \
                "$(head -5 "$work/$folder.log")"
            exit 1
        fi
    done
    echo "passed   $2:$good"
    exit ;;
esac

rm -rf "$work" && mkdir -p "$work"
compilers=
for compiler in g++ $clang; do
    if command -v "$compiler" > /dev/null; then compilers+="${compilers:+ }$compiler"; else echo "$compiler is not here: skipped"; fi
done
[ -x "$nvcc" ] || echo "nvcc is not here: skipped"
headers=${*:-$(git ls-files -co --exclude-standard '*.h' | grep -vE '^(test|dev|third_party)/|^device/(block|cpu|cuda|math|pack)\.h')}
bodies=
for header in $headers; do for file in $(closure "$header"); do case $file in *.cpp) bodies+=" $file ${file%.cpp}.h" ;; esac; done; done
for header in $(tr ' ' '\n' <<< "$headers $bodies" | grep '\.h$' | sort -u); do
    folder=$work/$(tr / + <<< "$header")
    for file in $(closure "$header"); do mkdir -p "$folder/$(dirname "$file")" && cp "$file" "$folder/$file"; done
    (cd "$folder" && user_project "$header")
done
tr ' ' '\n' <<< "$bodies" | grep '\.cpp$' | sort -u | while read -r body; do
    for compiler in $compilers; do echo "$body $compiler"; done
done | xargs -r -P "$cores" -L 1 test/copytest.sh --body || echo "a body does not compile: what needs it will not link"
printf '%s\n' $headers | xargs -P "$cores" -I{} test/copytest.sh --header {} "$compilers" | tee "$work/results"
awk '/^passed/ { ++p } /^FAILED/ { ++f } END { printf "%d passed, %d failed\n", p, f; exit f > 0 || !p }' "$work/results"
