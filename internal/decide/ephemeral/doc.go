// Package ephemeral decides about generic ephemeral volumes: claims that are
// made for one Pod, by a template in it, and go with it.
package ephemeral
