// Package healthz answers over HTTP whether a program or a driver lives, as a kubelet asks, with metrics and profiles
// beside it.
//
// Life cycle: Serve answers until its context ends. The number of connections and the size of a request have limits,
// and however many requests for a Check arrive, one is made at a time.
package healthz
