#!/bin/bash
# What `make gpu-check` found, a column a card: gpu/table.sh [FOLDER], of gpu/<card>-<driver>.json. A row that no file
# covers says `never run`; one that was tried and gave nothing, why not. Called by `make docs` for the README.
set -euo pipefail
folder=${1:-$(dirname "$0")}
files=$(ls "$folder"/*.json 2> /dev/null || true)

# label | what its line in a file must match | field | what it is multiplied with | unit
items() {
    cat <<'END'
suites of kernels|"name": "kernels", "state"|says|text|
suites of models|"name": "models", "state"|says|text|
suites of layouts|"name": "layouts", "state"|says|text|
runs like the CPU's|"name": "program", "state"|says|text|
memcheck|"name": "memcheck", "state"|says|text|
racecheck|"name": "racecheck", "state"|says|text|
copy|"group": "rate", "name": "copy"|gb_s|1|GB/s
one big product|"group": "rate", "name": "product",|tflop_s|1|TFLOP/s
one big product, FP8|"group": "rate", "name": "product in FP8"|tflop_s|1|TFLOP/s
slowest kernel that moves memory (85 % of the copy)|"name": "slowest kernel that moves memory"|found|100|%
attention forward, T 4096, D 128 (35 % of the peak)|"name": "attention forward, T 4096, D 128", "wanted"|found|100|%
attention backward, T 4096, D 128 (25 % of the peak)|"name": "attention backward, T 4096, D 128", "wanted"|found|100|%
GPT-2 124M, fp32|"group": "step", "name": "gpt2-124m fp32"|tokens_s|1|tokens/s
GPT-2 124M, bf16|"group": "step", "name": "gpt2-124m bf16"|tokens_s|1|tokens/s
Qwen2.5-0.5B, bf16|"group": "step", "name": "qwen2.5-0.5b bf16"|tokens_s|1|tokens/s
Qwen2.5-0.5B, FP8|"group": "step", "name": "qwen2.5-0.5b fp8"|tokens_s|1|tokens/s
Qwen2.5-1.5B, bf16|"group": "step", "name": "qwen2.5-1.5b bf16"|tokens_s|1|tokens/s
Qwen2.5-1.5B, FP8|"group": "step", "name": "qwen2.5-1.5b fp8"|tokens_s|1|tokens/s
Qwen2.5-1.5B, bf16 (60 % of the peak)|"name": "step of 1.5B in bf16"|found|100|%
Qwen2.5-1.5B, FP8 over bf16 (1.25 times)|"name": "step of 1.5B, FP8 over bf16"|found|1|times
END
}
# $1: file, $2: what its line matches, $3: field, $4: factor or text, $5: unit
cell() {
    local line value
    line=$(grep -F -m1 -- "$2" "$1") || { echo 'never run'; return; }
    if [ "$4" = text ]; then
        sed -nE 's/.*"state": "([^"]*)".*"says": "([^"]*)".*/\1\t\2/p' <<< "$line" | awk -F'\t' '{ print $1 == "passed" ? $2 : $1 ": " $2 }' | cut -c1-60
        return
    fi
    value=$(sed -nE 's/.*"'"$3"'": *([-0-9.e+]+).*/\1/p' <<< "$line")
    if [ -n "$value" ]; then awk -v v="$value" -v f="$4" -v u="$5" 'BEGIN { v *= f; printf(v >= 1000 ? "%.0f %s\n" : v >= 100 ? "%.1f %s\n" : "%.2f %s\n", v, u) }'
    elif grep -q '"skipped"' <<< "$line"; then sed -nE 's/.*"skipped": "([^"]*)".*/skipped: \1/p' <<< "$line" | cut -c1-60
    elif grep -q '"found": null' <<< "$line"; then echo 'nothing found'
    elif grep -q '"failed"' <<< "$line"; then sed -nE 's/.*"failed": "([^"]*)".*/failed: \1/p' <<< "$line" | cut -c1-60
    else echo 'never run'; fi
}

{
    printf ' '
    for f in $files; do
        note=$(sed -nE 's/.*"note": "([^"]+)", *$/ (\1)/p' "$f" | head -1)
        printf '|%s%s' "$(basename "$f" .json)" "$note"
    done
    [ -n "$files" ] || printf '|any card'
    printf '\n'
    while IFS='|' read -r label match name factor unit; do
        printf '%s' "$label"
        for f in $files; do printf '|%s' "$(cell "$f" "$match" "$name" "$factor" "$unit")"; done
        [ -n "$files" ] || printf '|never run'
        printf '\n'
    done < <(items)
} | awk -F'|' '{
    for (i = 1; i <= NF; ++i) { text[NR, i] = $i; if (length($i) > wide[i]) wide[i] = length($i) }
    fields = NF
} END {
    for (n = 1; n <= NR; ++n) {
        line = ""
        for (i = 1; i <= fields; ++i) line = line sprintf("%-" (wide[i] + 2) "s", text[n, i])
        sub(/ +$/, "", line)
        print line
    }
}'
