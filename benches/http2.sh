#!/usr/bin/env bash
# HTTP/2 against HTTP/1.1 over TLS, through the gateway, nginx and HAProxy, one worker
# each: interleaved, by h2load. Requests a second, and CPU of the proxy per request.
# usage: http2.sh GATEWAY [ROUNDS]
set -euo pipefail
gateway=$1 rounds=${2:-5} home=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$home"' EXIT
cd "$home"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem \
    -out certificate.pem -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost 2>/dev/null
port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
back=$(port) front=$(port) theirs=$(port) ours=$(port)
# Its own process, so that what the proxies cost is counted apart from what is behind them.
cat > nginx.conf <<N
pid $home/nginx.pid; error_log $home/error.log; daemon off; worker_processes 1; user root;
events { worker_connections 4096; }
http { access_log off; keepalive_requests 1000000;
  server { listen 127.0.0.1:$back; location / { return 200 "hello"; } } }
N
cat > front.conf <<N
pid $home/front.pid; error_log $home/front.log; daemon off; master_process off; user root;
events { worker_connections 4096; }
http { access_log off; keepalive_requests 1000000; http2_max_requests 1000000;
  upstream back { server 127.0.0.1:$back; keepalive 512; keepalive_requests 1000000; }
  server { listen 127.0.0.1:$front ssl http2; ssl_certificate $home/certificate.pem;
    ssl_certificate_key $home/key.pem;
    location / { proxy_pass http://back; proxy_http_version 1.1; proxy_set_header Connection ""; } } }
N
cat > gateway.toml <<N
[server]
http = ["127.0.0.1:0"]
admin = "127.0.0.1:0"
threads = 1
requests_per_connection_max = 1000000000
[[server.https]]
address = "127.0.0.1:$ours"
certificate = "$home/certificate.pem"
key = "$home/key.pem"
[log]
access = "off"
[planes.control]
hosts = ["api.localhost"]
[upstreams.control]
servers = ["127.0.0.1:$back"]
idle_timeout = "30s"
[directory]
source = "file"
path = "$home/directory.toml"
[limits.workspace]
key = "workspace"
algorithm = "token_bucket"
rate = 1000000
burst = 1000000
[[routes]]
plane = "control"
path = "/v1/workspaces/{workspace}/{*rest}"
limits = ["workspace"]
upstream = "control"
N
printf '[organisations.org_a]\n[workspaces.ws_a]\norganisation = "org_a"\n' > directory.toml
"$gateway" check --config gateway.toml > check.log 2>&1 || { cat check.log >&2; exit 1; }
cat certificate.pem key.pem > both.pem
cat > haproxy.cfg <<N
global
  nbthread 1
  maxconn 4096
defaults
  mode http
  timeout connect 5s
  timeout client 30s
  timeout server 30s
listen front
  bind 127.0.0.1:$theirs ssl crt $home/both.pem alpn h2,http/1.1
  server back 127.0.0.1:$back
N
nginx -c "$home/nginx.conf" 2>/dev/null &
nginx -c "$home/front.conf" 2>/dev/null & nginx=$!
haproxy -db -f haproxy.cfg > haproxy.log 2>&1 & haproxy=$!
"$gateway" run --config gateway.toml > out.log 2> err.log & weir=$!
for _ in $(seq 100); do
    grep -qsh '"message":"ready"' out.log err.log && break
    sleep 0.2
done
h2=(-c32 -m10)
read -ra h1 <<< "${H1:---h1 -c32}"
ticks() { awk '{ sub(/.*\) /, ""); print $12 + $13 }' "/proc/$1/stat"; }
load() { # PROCESS PORT FLAGS
    local pid=$1 p=$2 before; shift 2
    before=$(ticks "$pid")
    h2load -t1 --warm-up-time=1 -D3 "$@" -H ':authority: api.localhost' \
        "https://127.0.0.1:$p/v1/workspaces/ws_a/x" > last.log 2>&1
    grep -q '[1-9][0-9]* 2xx.* 0 4xx, 0 5xx' last.log || { cat last.log >&2; exit 1; }
    # The second of warming up is in the ticks of 10 ms, and not among the requests.
    awk -v ticks=$(($(ticks "$pid") - before)) '
        /finished in/ { printf "%d/s", $4 } / succeeded,/ { n = $8 }
        END { printf " %.1fus", ticks * 10000 / (n * 4 / 3) }' last.log
}
for round in $(seq "$rounds"); do
    echo "round $round" \
        "weir-h2 $(load $weir "$ours" "${h2[@]}") weir-h1 $(load $weir "$ours" "${h1[@]}")" \
        "nginx-h2 $(load $nginx "$front" "${h2[@]}") nginx-h1 $(load $nginx "$front" "${h1[@]}")" \
        "haproxy-h2 $(load $haproxy "$theirs" "${h2[@]}")" \
        "haproxy-h1 $(load $haproxy "$theirs" "${h1[@]}")"
done
