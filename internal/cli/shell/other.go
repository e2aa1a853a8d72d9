//go:build !linux

package shell

// Programs is empty: for other systems than Linux there is only kubectl's plugin.
type Programs struct{}
