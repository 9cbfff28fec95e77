#!/bin/bash
# The same five steps in fp64, in one layout of 8 ranks after another: loss and norm of the last, what rank 0 sent in it on
# each axis, and what it holds. Fails unless all have loss and norm of one rank, to 1e-11, and sent what the formulas say.
# Called by `make parity` and `make docs`; the runs stay in build/parity.
set -euo pipefail
export OMP_NUM_THREADS=1
runs=build/parity
rm -rf $runs && mkdir -p $runs

layout() {      # name, flags; prints what its row is made of
    local out=$runs/${1//[^a-z0-9]/-}
    ./train_gpt --data lessons/coriolanus.txt --val 0 --layers 4 --dim 64 --heads 8 --seq 32 --batch 2 \
        --tokens-per-step 1024 --steps 5 --dtype fp64 --save-every 0 --eval-every 0 --sample-every 0 --ledger \
        --out "$out" "${@:2}" > "$out.txt"
    echo "layout $1"
    sed -n '/^axis/,/^besides/p' "$out.txt"
    tail -1 "$out/log.jsonl" | tr '{,' '\n\n' | sed -nE 's/^"(loss|grad_norm)":/is \1 /p'
    sed -nE 's/^ *"memory.all": ([0-9]+),/held \1/p' "$out/run.json"
}
layouts() {
    layout 'one rank' --ranks 1
    layout 'none' --ranks 8
    layout 'zero1' --ranks 8 --shard zero1
    layout 'zero2' --ranks 8 --shard zero2
    layout 'fsdp' --ranks 8 --shard fsdp
    layout 'fsdp x 2 copies' --ranks 8 --shard fsdp --replicate 2
    layout 'tp 2' --ranks 8 --tp 2
    layout 'tp 4' --ranks 8 --tp 4
    layout 'tp 4 sp' --ranks 8 --tp 4 --sp
    layout 'tp 8' --ranks 8 --tp 8
    layout 'tp 8 sp' --ranks 8 --tp 8 --sp
    layout 'tp 4 sp x zero1' --ranks 8 --tp 4 --sp --shard zero1
    layout 'tp 4 x fsdp' --ranks 8 --tp 4 --shard fsdp
    layout 'tp 2 sp x fsdp' --ranks 8 --tp 2 --sp --shard fsdp
    layout 'tp 2 x zero1 x 2 copies' --ranks 8 --tp 2 --shard zero1 --replicate 2
    layout 'tp 2 sp x fsdp x 2 copies' --ranks 8 --tp 2 --sp --shard fsdp --replicate 2
}
layouts | awk '
    function wrong(what) { all_wrong = all_wrong "DIFFERENT  " name ": " what "\n" }
    function compare(what, x,   apart) {
        if (rows == 1) one[what] = x
        apart = x > one[what] ? x - one[what] : one[what] - x
        if (apart > 1e-11 * one[what]) wrong(what " " x ", of one rank " one[what])
    }
    BEGIN {
        printf "%-26s %11s  %11s   bytes a step on: %s\n", "", "loss", "norm", "dp_replicate   dp_shard         tp      MB"
    }
    $1 == "layout" { name = substr($0, 8); ++rows; sent["dp_replicate"] = sent["dp_shard"] = sent["tp"] = 0 }
    $1 in sent {
        sent[$1] += $5
        if ($5 != $6) wrong($2 " " $3 " on " $1 ": " $5 " bytes, by formula " $6)
    }
    $1 == "is" { is[$2] = $3; compare($2, $3) }
    $1 == "held" {
        printf "%-26s %.9f  %.9f", name, is["loss"], is["grad_norm"]
        printf " %31d %10d %10d %7.3f\n", sent["dp_replicate"], sent["dp_shard"], sent["tp"], $2 / 1e6
    }
    END {
        printf "%s", all_wrong
        if (all_wrong || rows != 16) exit 1
        print "equal: loss and norm of all 16, to 1e-11; bytes that rank 0 sent, to the formulas"
    }'
