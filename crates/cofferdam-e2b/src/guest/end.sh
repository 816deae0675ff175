# Ends all processes of an exec: TAG SIGNAL TICKS. After TICKS of 50 ms, the signal is KILL.
tag=$1 signal=$2 ticks=$3
members() {
	local file
	for file in $(grep -ls "^Max file locks *$tag " /proc/[0-9]*/limits); do
		file=${file%/limits}
		# What has ended and waits to be collected needs no signal.
		grep -qs '^State:[[:space:]]*[ZX]' "$file/status" || echo "${file#/proc/}"
	done
}
if [ "$signal" != KILL ]; then
	pids=$(members)
	[ -z "$pids" ] || kill -s "$signal" $pids 2>/dev/null
	for ((; ticks > 0; ticks--)); do
		[ -n "$(members)" ] || exit 0
		sleep 0.05
	done
fi
# Processes may fork while they are looked for.
for ((round = 0; round < 200; round++)); do
	pids=$(members)
	[ -n "$pids" ] || exit 0
	kill -s KILL $pids 2>/dev/null
	sleep 0.01
done
exit 1
