// Package skeleton writes small source trees that others begin with. The files are made of templates, which may have
// parts that are only for some languages or kinds of drivers.
package skeleton
