// Package socket makes the unix sockets that drivers and those who announce them answer at, and finds those that
// systemd has made.
package socket
