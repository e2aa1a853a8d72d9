// Package chain says what an explanation is made of: a chain of links, each an object with what a decision says of it;
// which link is the one to look at; and how both are written for people.
//
// Life cycle: whoever explains makes links with New and Tell and joins them to a Chain, which is read only after that.
package chain
