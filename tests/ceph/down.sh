#!/bin/bash
# down.sh DIR [--rm] - ends, by pid, what up.sh started in DIR: the gateway first, the monitor last. --rm removes DIR too.
dir=$(realpath -m "${1:?usage: down.sh DIR [--rm]}")
[ -f "$dir/pids" ] || exit 0
tac "$dir/pids" | while read -r _ pid; do
    kill -TERM "$pid" 2>/dev/null || continue
    for _ in $(seq 60); do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.05
    done
    kill -KILL "$pid" 2>/dev/null
done
: >"$dir/pids"
[ "${2:-}" != --rm ] || rm -rf "$dir"
exit 0
