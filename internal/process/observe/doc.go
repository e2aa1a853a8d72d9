// Package observe counts what a process does and serves the counts, and whether the process is well, over HTTP.
// Others feed it; it knows no policy. All methods of a nil *Registry do nothing, so that a process without a server
// counts nothing. The names of what upstream's sidecars serve are theirs, so that dashboards for them work.
package observe
