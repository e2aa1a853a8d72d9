// Package demo plays the life of a volume as a user would, with the verbs of this program, and looks whether each has
// done what it says.
package demo
