# Runs a benchmark in namespaces of its own, with servers in a network behind them.
# Usage: network.sh DIRECTORY PROGRAM [OPTIONS]...
directory=$1 program=$2
shift 2
ip link set lo up
unshare --net sh -c 'echo $$; exec sleep 100000' > "$directory/pid" & servers=$!
until [ -s "$directory/pid" ]; do sleep 0.05; done
ip link add inside type veth peer name outside netns "$servers"
ip addr add 11.22.33.1/24 dev inside
ip link set inside up
ip route add default via 11.22.33.44
nsenter --net --target "$servers" sh -c 'ip link set lo up; ip addr add 11.22.33.44/24 dev outside; ip link set outside up'
printf '127.0.0.1 localhost\n11.22.33.44 web.example\n' > "$directory/hosts"
mount --bind "$directory/hosts" /etc/hosts
nsenter --net --target "$servers" "$program" net --serve "$directory" &
until [ -s "$directory/certificate.der" ]; do sleep 0.05; done
"$program" "$@"
