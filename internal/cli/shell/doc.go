// Package shell is what all verbs share: the streams, the connection to the API server and its flags, the formats of
// output, progress, words of flags, the directories of this host, and errors with exit codes.
//
// Life cycle: there is one Shell for each call of the program. It holds no connection; a verb makes its client, which
// ends with it.
package shell
