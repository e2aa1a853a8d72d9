//go:build !linux

package program

// ThisNode returns the host's name as a Node name: agents run on Linux only.
func ThisNode() string { return HostName() }
