// Package redact takes secrets out of what a driver says, before anybody
// repeats it.
//
// A driver quotes what it was given: as it is, in JSON, in a URL, in base64 or
// hex, in the trace of a shell, cut off in the middle, and also in a later call
// in which it was not given the secret again. So Secrets remembers what drivers
// were given, by hashes only, and Hide undoes every spelling and looks for
// parts of secrets in what is left.
//
// A driver that means to tell a secret can always tell it, in a spelling of its
// own; nothing here is a defence against that.
package redact
