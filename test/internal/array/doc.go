// Package array is storage that several hosts of a test reach, with a CSI driver on each. It serves real mounts, and
// records whatever must never happen: a volume that is published to two hosts, one that is mounted where it is not
// published, calls by two hosts at the same time.
package array
