// Package driverhost runs the CSI drivers that the files of a directory describe: it starts their programs, registers
// their node sockets with the node agent of the host, and reaches the sockets of their controllers.
//
// Life cycle: Run reads the files, follows them, and has one goroutine for each driver. A driver whose file has changed
// is restarted where needed; one whose file is gone is unregistered and its programs are ended. When Run ends, programs
// keep running, and the next Run adopts them. A file that cannot be used changes nothing about the driver that it
// described.
package driverhost
