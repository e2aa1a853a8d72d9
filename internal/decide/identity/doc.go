// Package identity decides which clients are accepted as nodes: whether an invitation and a
// certificate are valid, and when a node renews its certificate. It also defines the requests that
// nodes send to the API server for this.
package identity
