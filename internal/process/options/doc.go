// Package options has the options of the programs that run until they are stopped: the command line
// reads them, and package app runs the programs. All fields are set before the start.
package options
