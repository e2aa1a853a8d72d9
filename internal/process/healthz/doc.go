// Package healthz answers over HTTP whether a program or a driver lives, as a kubelet asks, with metrics and profiles
// beside it.
//
// Life cycle: Serve serves paths until its context ends. Each connection has one request. Their number and the size of
// a request have limits, and however many ask for a Check, one is made at a time.
//
// The server of net/http is not used: with TLS and HTTP/2, which it brings, it takes 2 MiB of each process, and these
// programs run on each node for each driver.
package healthz
