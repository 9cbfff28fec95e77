#!/bin/bash
# The two-minute tour: a run, eight ranks, pictures, sixteen layouts, a bug that trains, and the test that catches it. Says
# what it does and where the pages are; they stay in build/demo. Called by `make demo` and .ci/run.
set -euo pipefail
cd "$(dirname "$0")/.."
unset MAKELEVEL MAKEFLAGS MFLAGS
out=build/demo bug=build/demo/bug
rm -rf $out && mkdir -p $out
trap 'echo "the demo failed, see above"' ERR
say() { printf '\n==== %s\n' "$*"; }
run() { printf '$ %s\n' "$*"; "$@"; }

say "1. A small GPT learns this repository's own text, 200 steps"
run ./train_gpt --steps 200 --log-every 50 --eval-every 100 --sample-every 200 --tokens 120 --save-every 0 --out $out/one

say "2. The same program as 8 ranks: 2 to a matrix, the rows between them too, weights in 2 shards, 2 copies of all that"
export OMP_NUM_THREADS=1
eight=(--config lessons/small.toml --ranks 8 --tp 2 --sp --shard fsdp --replicate 2)
run ./train_gpt "${eight[@]}" --out $out/eight | tee $out/eight.txt
[ "$(grep -c DIFFERENT $out/eight.txt)" = 0 ]
echo "the lanes of every rank: $out/eight/run.html; for ui.perfetto.dev: $out/eight/trace.json"

say "3. What each rank holds; what two have of a block, and what travels"
run ./train_gpt plan "${eight[@]}" -o $out/holdings.svg | sed -n '1p; /^MB/,$p'
lessons/split.sh "${eight[@]}" > $out/split.svg
echo "pictures: $out/holdings.svg $out/split.svg"

say "4. One run, sixteen layouts (make parity)"
run lessons/parity.sh

say "5. A bug that trains: a line is changed in a copy of the source, the loss falls nearly as well"
lessons/exercise.sh sp $bug > $out/bug.log
diff tp.h $bug/tp.h || [ $? = 1 ]                        # they differ; 2: one of them is not there
make -C $bug all build/g++/suite/tp/test_kernels SUITE=tp >> $out/bug.log 2>&1 || { tail -5 $out/bug.log; exit 1; }
for program in . $bug; do
    $program/train_gpt --config lessons/small.toml --ranks 2 --tp 2 --sp --trace 0 --ledger false --steps 60 --log-every 10 \
        --out $out/"$([ $program = . ] && echo right || echo wrong)" | grep '^step' | cut -d'|' -f1-3
done | awk '{ line[NR] = $0 } END { print "right                                 with the bug"
    for (i = 1; i <= NR / 2; ++i) print line[i] "   " line[i + NR / 2] }'

say "6. The test that catches it (make test SUITE=tp, in the copy)"
said=$(lessons/exercise.sh --grade sp $bug) && exit 1
grep '^failed ' <<< "$said"
echo
echo "pages: $out/one/run.html $out/eight/run.html   pictures: $out/holdings.svg $out/split.svg   $SECONDS s"
echo "1 passed, 0 failed"
