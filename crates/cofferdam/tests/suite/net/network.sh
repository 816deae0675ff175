# Creates a network with servers, in namespaces of its own: this shell's network is the host's, and the servers are in a
# network behind it. Prints "ready" and waits. Usage: network.sh DIRECTORY SERVER
directory=$1 server=$2
ip link set lo up
unshare --net sh -c 'echo $$; exec sleep 100000' > "$directory/pid" & servers=$!
until [ -s "$directory/pid" ]; do sleep 0.05; done
ip link add inside type veth peer name outside netns "$servers"
ip addr add 11.22.33.1/24 dev inside
ip link set inside up
ip route add 10.1.2.3 dev inside
# Packets to this address are lost: no interface has its hardware address.
ip neigh add 11.22.33.99 lladdr 02:00:00:00:00:99 dev inside nud permanent
nsenter --net --target "$servers" sh -c 'ip link set lo up; ip addr add 11.22.33.44/24 dev outside
    ip addr add 11.22.33.45/24 dev outside; ip addr add 10.1.2.3/32 dev outside; ip link set outside up'
cat > "$directory/hosts" << 'HOSTS'
127.0.0.1 localhost
11.22.33.44 web.example other.example a.suffix.example
11.22.33.45 api.example elsewhere.example wrong.example
11.22.33.45 pypi.org files.pythonhosted.org registry.npmjs.org index.crates.io static.crates.io deb.debian.org
11.22.33.1 own.example
11.22.33.98 absent.example
11.22.33.99 hole.example
10.1.2.3 private.example
169.254.169.254 metadata.example
127.0.0.1 loopback.example
HOSTS
mount --bind "$directory/hosts" /etc/hosts
# Other names are those of the servers' own DNS server.
printf 'nameserver 11.22.33.45\noptions timeout:2 attempts:2\n' > "$directory/resolv.conf"
mount --bind "$directory/resolv.conf" /etc/resolv.conf
mkdir "$directory/served"
# An authority, and a certificate for the names of all servers but wrong.example.
key="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
{
    openssl req -x509 $key -days 2 -subj '/CN=Place authority' -addext keyUsage=critical,keyCertSign \
        -keyout "$directory/authority.pem" -out "$directory/files/certificate.pem"
    openssl req $key -subj /CN=web.example -keyout "$directory/key.pem" -out "$directory/request.pem"
    cat > "$directory/extensions" << 'EXTENSIONS'
basicConstraints=CA:FALSE
extendedKeyUsage=serverAuth
authorityKeyIdentifier=keyid
subjectAltName=DNS:web.example,DNS:other.example,DNS:api.example,DNS:elsewhere.example,DNS:pypi.org,\
DNS:files.pythonhosted.org,DNS:registry.npmjs.org,DNS:index.crates.io,DNS:static.crates.io
EXTENSIONS
    openssl x509 -req -in "$directory/request.pem" -CA "$directory/files/certificate.pem" \
        -CAkey "$directory/authority.pem" -CAcreateserial -days 2 -extfile "$directory/extensions" \
        -out "$directory/server.pem"
} 2> "$directory/openssl"
nsenter --net --target "$servers" python3 "$server" "$directory" &
wait
