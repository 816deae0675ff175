# Runs a program in a network namespace of bubblewrap that slirp4netns connects.
# Usage: slirp.sh DIRECTORY PROGRAM [OPTIONS]...
directory=$1
shift
rm -f "$directory/info"
bwrap --dev-bind / / --unshare-net --unshare-user --info-fd 9 \
    sh -c 'until ip route | grep -q ^default; do sleep 0.02; done; exec "$@"' sh "$@" 9> "$directory/info" &
client=$!
slirp=
trap 'kill $client $slirp 2> /dev/null' EXIT
trap 'exit 1' TERM
until grep -q child-pid "$directory/info"; do
    kill -0 "$client" 2> /dev/null || exit 1
    sleep 0.02
done
pid=$(sed -n 's/.*"child-pid": \([0-9]*\).*/\1/p' "$directory/info")
slirp4netns --configure --mtu=65520 --disable-host-loopback "$pid" tap0 > "$directory/slirp.log" 2>&1 &
slirp=$!
wait "$client"
exit $?
