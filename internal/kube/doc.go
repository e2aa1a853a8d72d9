// Package kube is the access to the Kubernetes API, whoever serves it: cached
// objects, restricted clients, events and the roles that follow from what a
// controller declares.
//
// Life cycle: Caches are made lazily, one for each kind in a process; a
// component asks for the kinds it reads, registers its interest with Watch, and
// then Caches.Start has a watch fill them, of which client-go's reflector takes
// care. They are made to hold very many objects in little memory: trimmed, with
// equal parts shared. What a component writes goes through a
// client that refuses every request that the component has not declared.
package kube
