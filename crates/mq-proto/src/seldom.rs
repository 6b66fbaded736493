//! A map that is empty for most connections.

use core::hash::Hash;

use hashbrown::{
    DefaultHashBuilder, HashMap,
    hash_map::{Entry, Iter, Values},
};

/// A map that takes one word until something is put in. It then keeps its memory, as a map does.
#[derive(Clone, Debug)]
pub(crate) struct SeldomMap<K, V>(Option<Box<HashMap<K, V>>>);

impl<K, V> Default for SeldomMap<K, V> {
    fn default() -> Self {
        Self(None)
    }
}

impl<K: Eq + Hash, V> SeldomMap<K, V> {
    #[inline]
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.0.as_ref()?.get(key)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.0.as_mut()?.get_mut(key)
    }

    pub(crate) fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.0.get_or_insert_default().insert(key, value)
    }

    pub(crate) fn entry(&mut self, key: K) -> Entry<'_, K, V, DefaultHashBuilder> {
        self.0.get_or_insert_default().entry(key)
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.0.as_mut()?.remove(key)
    }

    pub(crate) fn retain(&mut self, keep: impl FnMut(&K, &mut V) -> bool) {
        if let Some(map) = &mut self.0 {
            map.retain(keep);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |map| map.len())
    }

    /// Returns the memory of the map, without what its entries point to, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |map| map.allocation_size())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn iter(&self) -> Iter<'_, K, V> {
        self.0.as_deref().map(HashMap::iter).unwrap_or_default()
    }

    pub(crate) fn values(&self) -> Values<'_, K, V> {
        self.0.as_deref().map(HashMap::values).unwrap_or_default()
    }

    #[cfg(feature = "mqtt-next")]
    pub(crate) fn values_mut(&mut self) -> hashbrown::hash_map::ValuesMut<'_, K, V> {
        let map = self.0.as_deref_mut();
        map.map(HashMap::values_mut).unwrap_or_default()
    }

    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }
}

impl<K: Eq + Hash, V> FromIterator<(K, V)> for SeldomMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let map: HashMap<K, V> = pairs.into_iter().collect();
        Self((!map.is_empty()).then(|| Box::new(map)))
    }
}
