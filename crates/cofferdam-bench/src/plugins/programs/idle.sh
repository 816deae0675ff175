# The smallest plugin without an SDK: it answers each request, and has no methods.
carriage=$(printf '\r')
send() { printf 'Content-Length: %d\r\n\r\n%s' "${#1}" "$1"; }
while IFS= read -r line; do
  case $line in
    Content-Length*) length=${line#*: } length=${length%"$carriage"}; continue ;;
  esac
  body=$(head -c "$length")
  id=${body##*'"id":'} id=${id%%[,\}]*}
  case $body in
    *'"method":"exit"'*) exit 0 ;;
    *'"method":"initialize"'*) result='{"protocolVersion":1,"sdk":{"name":"none","version":"1"},"methods":["none"]}' ;;
    *) result=null ;;
  esac
  send "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":$result}"
done
