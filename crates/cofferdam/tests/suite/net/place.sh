# Creates a network with servers, in namespaces of its own: this shell's network is the host's, and the servers are in a
# network behind it. Prints "ready" and waits. Usage: place.sh DIRECTORY SERVER
directory=$1 server=$2
ip link set lo up
unshare --net sh -c 'echo $$; exec sleep 100000' > "$directory/pid" & servers=$!
until [ -s "$directory/pid" ]; do sleep 0.05; done
ip link add inside type veth peer name outside netns "$servers"
ip addr add 11.22.33.1/24 dev inside
ip link set inside up
nsenter --net --target "$servers" sh -c 'ip link set lo up; ip addr add 11.22.33.44/24 dev outside; ip link set outside up'
cat > "$directory/hosts" << 'HOSTS'
127.0.0.1 localhost
11.22.33.44 web.example other.example a.suffix.example
11.22.33.1 own.example
10.1.2.3 private.example
169.254.169.254 metadata.example
127.0.0.1 loopback.example
HOSTS
mount --bind "$directory/hosts" /etc/hosts
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=web.example -addext subjectAltName=DNS:web.example \
    -keyout "$directory/key.pem" -out "$directory/files/certificate.pem" 2> /dev/null
nsenter --net --target "$servers" python3 "$server" 11.22.33.44 "$directory/files/certificate.pem" "$directory/key.pem" &
wait
