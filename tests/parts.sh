#!/usr/bin/env bash
# Runs the test binary as several processes at once, each with its part of the tests, for at most so many seconds:
#
#     tests/parts.sh BINARY PROCESSES SECONDS FOLDER [ARGUMENTS OF THE BINARY]
#
# FOLDER gets what each process prints, on `.log` and `.err`, and `passed`, the names of the tests that passed. A run with the
# same FOLDER leaves those out, so that one that was cut off can be continued.
set -euo pipefail
[ $# -ge 4 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2; }
binary=$1 parts=$2 limit_s=$3 folder=$4
shift 4

mkdir -p "$folder"
touch "$folder/passed"
cp "$folder/passed" "$folder/before"
for part in $(seq "$parts"); do
    WGRAD_TEST_PART=$part/$parts WGRAD_TEST_WITHOUT=$folder/before \
        timeout -k 5 "$limit_s" "$binary" --test-threads 1 "$@" >"$folder/$part.log" 2>"$folder/$part.err" &
done
wait

logs=()
for part in $(seq "$parts"); do logs+=("$folder/$part.log"); done
named() { sed -n "s/^test \([^ ]*\) .*\.\.\. $1\$/\1/p" "${logs[@]}"; }
named ok >>"$folder/passed"
named FAILED >"$folder/failed"
all=$(awk '/^running [0-9]+ tests?$/ { n += $2 } END { print n + 0 }' "${logs[@]}")
passed=$(($(wc -l <"$folder/passed") - $(wc -l <"$folder/before"))) failed=$(wc -l <"$folder/failed")
sed 's/^/failed: /' "$folder/failed"
echo "$passed passed, $failed failed, $((all - passed - failed)) not ended; $(wc -l <"$folder/passed") passed with earlier runs"
[ "$failed" = 0 ] && [ "$all" -gt 0 ] && [ "$((all - passed))" = 0 ]
