# Ends all processes of an exec: TAG SIGNAL TICKS. After TICKS of 50 ms, the signal is KILL.
tag=$1 signal=$2 ticks=$3
# Prints the processes whose limits have the tag, and those whose limits fit no tag: a program can lower its limits, but
# not raise them. Lowering both never gives another tag, because their sum is fixed. Only the hard limits count: a program
# can raise the soft ones again.
members() {
	local file word1 word2 word3 soft hard locks resident
	for file in $(grep -lsE '^Max file locks +[^ ]+ +[0-9]' /proc/[0-9]*/limits); do
		locks='' resident=''
		while read -r word1 word2 word3 soft hard _; do
			case "$word1 $word2 $word3" in
			'Max file locks') locks=$hard ;;
			'Max resident set') resident=$hard ;;
			esac
		done 2>/dev/null <"$file"
		[ -n "$locks" ] || continue
		[ "$locks" = "$tag" ] || [ "$resident" != $((((1 << 49) - locks) * 1024)) ] || continue
		file=${file%/limits}
		# A zombie needs no signal.
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
