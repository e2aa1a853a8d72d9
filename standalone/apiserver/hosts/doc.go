// Package hosts restricts the controllers of hosts, which call the node-local drivers of their node: an authorizer lets
// a node's agent act as them and gives them their intent log, and an admission plugin restricts their writes to the
// volumes of their node, and to drivers that are delegated to it. A role has their other rights.
//
// Life cycle: the plugin reads the objects that it needs for each request and keeps nothing.
package hosts
