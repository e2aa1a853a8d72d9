// Package objects is access to objects of any type of the server: by the words of a command line, by files, and by
// completion.
package objects
